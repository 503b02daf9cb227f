"""TRACE's `agent_accent`: cosine similarity to 16 accents of English by an ECAPA network (CommonAccent) on speechbrain.

The weights come from a hub only. Where they or the extra `trace` are missing, the fields are absent and say so.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paras2s.audio.clip import Clip
from paras2s.errors import AssetError, AudioError, one_line
from paras2s.reward.blueprint.schema import ACCENT, Fields, require_sound, unusable
from paras2s.types import Measured

# As in TRACE, Fig. 8, where one name is misspelt; the model misspells it in another way.
ACCENTS = (
    "england", "us", "canada", "australia", "indian", "scotland", "ireland", "african", "malaysia", "newzealand",
    "southatlantictic", "bermuda", "philippines", "hongkong", "wales", "singapore",
)  # fmt: skip
_SPELT = {"southatlandtic": "southatlantictic", "southatlantic": "southatlantictic"}


@dataclass(frozen=True)
class AccentExtractor:
    """Cosine similarity, -1 to 1, to each accent; not a distribution."""

    model: str = "Jzuluaga/accent-id-commonaccent_ecapa"
    name = "accent"
    rate_hz = 16_000
    keys = tuple(f"{ACCENT}.{label}" for label in ACCENTS)

    @property
    def version(self) -> str:
        """Names the model."""
        return f"speechbrain/{self.model}"

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Accent of each clip. Raises AudioError: a clip is silent. AssetError: the extra or the weights are missing."""
        for clip in clips:
            require_sound(clip, "accent")
        model = _model(self.model)
        import torch

        fields = []
        for clip in clips:
            similarities = model.classify_batch(torch.from_numpy(clip.samples)[None])[0][0].tolist()
            names = [model.hparams.label_encoder.ind2lab[index] for index in range(len(similarities))]
            fields.append(accent_fields(dict(zip(names, similarities, strict=True))))
        return fields


def accent_fields(similarities: dict[str, float]) -> Fields:
    """Return the fields of a clip from similarities by the model's label names. Raises AudioError: an accent is missing."""
    by_name = {_SPELT.get(label, label): value for label, value in similarities.items()}
    if missing := [label for label in ACCENTS if label not in by_name]:
        raise AudioError(f"the accent model gave no similarity to {', '.join(missing)}")
    return {f"{ACCENT}.{label}": Measured(float(by_name[label]), "cosine") for label in ACCENTS}


@functools.lru_cache(maxsize=1)
def _model(model: str) -> Any:
    try:
        from speechbrain.inference.classifiers import EncoderClassifier
    except Exception as error:
        raise unusable("accent", error) from error
    try:
        return EncoderClassifier.from_hparams(source=model)
    except Exception as error:
        # speechbrain lets its hub client's errors through, whatever they are.
        raise AssetError(f"{model}: the weights are not here and cannot be fetched ({one_line(error)[:200]})") from error
