"""The settings a checkpoint answers with where nothing else is said: sampling by stream, decoder, and how it is asked.

A run writes them beside the weights it makes (`answers.json`). A released checkpoint has its family's (`configs/policies/`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from paras2s.configs.schema.base import parse_config
from paras2s.configs.schema.families import family_values
from paras2s.configs.schema.run import RunConfig
from paras2s.errors import PolicyError
from paras2s.policy.types import Sampling
from paras2s.utils.io import read_json, write_json

ANSWERS = "answers.json"


@dataclass(frozen=True)
class AnswerSettings:
    """Sampling, `module:function` of a decoder, and the prompt (`policy.decoder`, `policy.transcript_in_prompt`)."""

    sampling: Sampling
    decoder: str | None = None
    transcript_in_prompt: bool = False


def answer_settings_of(config: RunConfig) -> AnswerSettings:
    """Return the answer settings with which a run benches its policies."""
    bench = config.bench
    warm = bench.temperature if bench.audio_temperature is None else bench.audio_temperature
    sampling = Sampling(bench.temperature, warm, config.policy.max_answer_steps, bench.text_top_k or 0, bench.audio_top_k or 0)
    return AnswerSettings(sampling, config.policy.decoder, config.policy.transcript_in_prompt)


def write_answer_settings(folder: Path, settings: AnswerSettings) -> None:
    """Write `answers.json` into a checkpoint."""
    write_json(folder / ANSWERS, asdict(settings))


def read_answer_settings(folder: Path, kind: str) -> AnswerSettings | None:
    """Return a checkpoint's own settings, else its family's, None for an outside kind. Raises PolicyError: unreadable."""
    path = folder / ANSWERS
    if path.is_file():
        held = read_json(path)
        try:
            # Those of version 0.11 and before do not say how it is asked.
            return AnswerSettings(Sampling(**held["sampling"]), held["decoder"], bool(held.get("transcript_in_prompt", False)))
        except (KeyError, TypeError) as error:
            raise PolicyError(f"{path}: not how a policy answers ({error}); delete it for its family's") from error
    values = family_values(kind)
    if not values and kind != "embedded":
        return None
    return answer_settings_of(parse_config(values, f"configs/policies/{kind}.yaml", RunConfig))
