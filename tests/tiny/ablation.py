"""Rows of an ablation as `run_ablation` returns them."""

from typing import Any


def counted(mean: float | None, error: float | None = 0.1) -> dict[str, Any]:
    return {"mean": mean, "standard_error": error if mean is not None else None, "n_scored": 3, "n_asked": 4}


def result(name: str, mean: float | None, **changes: Any) -> dict[str, Any]:
    scores = {"overall": counted(mean), "contrast": counted(0.5), "word_error_rate": counted(None)}
    scores["categories"] = {"age": counted(mean)}
    return {"row": name, "line": "", "x": None, "seed": 0, "scores": scores, "kl": 0.125, "minutes": 2.0, **changes}
