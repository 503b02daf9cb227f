"""The nouns of the public API that need a line or two of wiring; `paras2s/__init__.py` exports them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paras2s.audio.clip import Clip
    from paras2s.policy.base import Policy
    from paras2s.policy.subject import Finding
    from paras2s.reward.tone_classifier import ToneClassifier
    from paras2s.types import Blueprint


def blueprint(
    clip: Clip | str | Path,
    extractors: Sequence[str] = ("words", "quality", "pitch", "loudness", "voicing"),
    tone: ToneClassifier | None = None,
) -> Blueprint:
    """Measure a clip (TRACE, section 3.1): each field has a value with its unit, or the reason why it is absent.

    `extractors` are names of those in reward/blueprint/extract.py (words, quality, pitch, loudness, voicing ...) or of a
    plug-in; "tone" needs a fitted classifier.

    Raises:
        AudioError: the file cannot be read. ConfigError: an unknown extractor.
    """
    from paras2s.audio.clip import read_clip
    from paras2s.reward.blueprint.extract import build_blueprints, make_extractors

    sound = read_clip(Path(clip)) if isinstance(clip, str | Path) else clip
    return build_blueprints([sound], make_extractors(extractors, tone))[0]


def open_policy(folder: str | Path, kind: str | None = None, device: str = "auto") -> Policy:
    """Load a policy from a checkpoint: of a run (`runs/demo/aligned`), or a released model's folder.

    `kind` is what `policy.kind` names (kimi, moshi ..., or module:Class); None: what the checkpoint calls itself.

    Raises:
        PolicyError: no checkpoint, or tensors that do not fit.
    """
    from paras2s.policy.registry import load_policy

    return load_policy(Path(folder), kind, device)


def check_policy(policy: Policy) -> Iterator[Finding]:
    """Yield the findings of the contract of every policy, as `paras2s check-policy` does."""
    from paras2s.policy.contract import check_policy
    from paras2s.policy.subject import subject_of

    return check_policy(subject_of(policy))
