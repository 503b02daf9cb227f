"""Opens a conversation: which checkpoints answer, which judges score, and what the page says they can understand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paras2s.audio.assets import asset_path
from paras2s.bench.paras2s.gain import AFTER, BEFORE
from paras2s.data_gen.clip_encoder import RunClipEncoder
from paras2s.data_gen.dataset import Manifest, load_manifest
from paras2s.data_gen.scripted.scripts import load_contrasts
from paras2s.data_gen.tts.piper_world import USER_STYLES
from paras2s.errors import AssetError, ConfigError
from paras2s.policy.base import Policy
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.registry import is_checkpoint, load_policy
from paras2s.reward.judges.base import Judge
from paras2s.reward.judges.registry import WEIGHTS, open_judge
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.run import RESOLVED, open_run
from paras2s.studio.answers import choose_contrasts
from paras2s.studio.talk.conversation import Conversation, Side, TalkQuestion
from paras2s.types import Query
from paras2s.utils.suggest import nearest_file

# Of the questions that the page offers, and of those that a recorded page answers.
EXAMPLES, RECORDED = 12, 4
TONE = Path("data/tone_agent.json")


@dataclass(frozen=True)
class World:
    """The questions that the checkpoints understand, as the page says.

    `styles` can be chosen, `examples` are questions of `queries`; `scripted`: they were trained on the shipped scripts alone.
    `untyped` says why typed questions cannot be spoken, "" if they can.
    """

    styles: tuple[str, ...]
    examples: tuple[tuple[str, str], ...]
    scripted: bool
    untyped: str
    dataset: Manifest | None

    def recorded(self) -> Iterator[TalkQuestion]:
        """Yield the run's own test questions for a recorded page: both styles of a contrast of each category."""
        for query in _examples(self.dataset, RECORDED):
            assert self.dataset is not None
            yield TalkQuestion(self.dataset.clip(query.clip), query.style, query.text)


def open_conversation(
    first: Path, other: Path | None, judges: Sequence[str], tone: Path | None, votes: Path | None
) -> tuple[Conversation, World, Path]:
    """Open the sides and judges; return them with what the page says, and the folder that it belongs to.

    Votes are kept in `votes`, by default the folder `talk` of the run.

    Raises:
        ConfigError: neither a run nor a checkpoint, or a judge that cannot score. PolicyError: weights that do not fit.
    """
    named = _checkpoints(first, other)
    run = next((run for _, path in named if (run := _run_around(path)) is not None), None)
    loaded: dict[Path, Policy] = {path: _load(path) for path in dict.fromkeys(path for _, path in named)}
    sides = [Side(name, loaded[path]) for name, path in named]
    if tone is None and run is not None and (run / TONE).is_file():
        tone = run / TONE
    classifier = None if tone is None else ToneClassifier.load(tone)
    opened = [_open_judge(name, classifier) for name in judges or _own_judges(run, classifier)]
    folder = votes or (run or Path()) / "talk"
    return Conversation(sides, opened, classifier, folder), _world(run, sides), run or named[0][1]


def _checkpoints(first: Path, other: Path | None) -> list[tuple[str, Path]]:
    """Return name and folder of both sides: of a run alone `sft` and `aligned`, and one checkpoint alone answers twice."""
    if other is None and (first / RESOLVED).is_file():
        paths = [first / name for name in (BEFORE, AFTER) if is_checkpoint(first / name)] or [_checkpoint(first)]
    else:
        paths = [_checkpoint(path) for path in (first, other) if path is not None]
    if len({path.resolve() for path in paths}) == 1:
        return [(f"{paths[0].name}, take {take}", paths[0]) for take in (1, 2)]
    short = len({path.name for path in paths}) == len(paths)
    return [(path.name if short else f"{path.parent.name}/{path.name}", path) for path in paths]


def _checkpoint(path: Path) -> Path:
    """Return a checkpoint's folder; of a run its last policy. Raises ConfigError: there is none."""
    if is_checkpoint(path):
        return path
    if (path / RESOLVED).is_file():
        own = [path / name for name in (AFTER, BEFORE) if is_checkpoint(path / name)]
        if own:
            return own[0]
        raise ConfigError(f"{path}: this run has no policy yet; `paras2s warmup {path}` makes one")
    why = "neither a run nor a checkpoint" if path.is_dir() else f"no such folder{nearest_file(path)}"
    raise ConfigError(f"{path}: {why}; give the folder of a run, or of a checkpoint such as runs/demo/aligned")


def _run_around(checkpoint: Path) -> Path | None:
    """Return the run that a checkpoint is named in; a link to another run's is this run's own."""
    return next((folder for folder in checkpoint.absolute().parents if (folder / RESOLVED).is_file()), None)


def _load(path: Path) -> Policy:
    run = _run_around(path)
    return load_policy(path) if run is None else open_run(run, quiet=True).load_policy(path)


def _own_judges(run: Path | None, tone: ToneClassifier | None) -> list[str]:
    """Return the judges of a run: the rubric, and the reward model that learned from it."""
    model = [] if run is None or not (run / "reward" / WEIGHTS).is_file() else [str(run)]
    return ([] if tone is None else ["rubric"]) + model


def _open_judge(name: str, tone: ToneClassifier | None) -> Judge:
    judge = open_judge(name, tone=tone, encoder=RunClipEncoder)
    if type(judge).score_batch is Judge.score_batch:
        raise ConfigError(f"--judge {name}: compares answers, and cannot score a single one; choose another, such as rubric")
    return judge


def _world(run: Path | None, sides: Sequence[Side]) -> World:
    scripted = any(isinstance(side.policy, EmbeddedPolicy) for side in sides)
    dataset = load_manifest(run / "data") if run is not None and (run / "data" / "queries.parquet").is_file() else None
    examples = [(query.text or "", query.style or "") for query in _examples(dataset, EXAMPLES)]
    styles = tuple(USER_STYLES)
    if dataset is not None:
        own = {query.style for query in dataset.queries if query.style}
        styles = (*(style for style in styles if style in own), *sorted(own.difference(styles)))
    elif scripted:
        contrasts = load_contrasts()
        chosen = contrasts[:: len(contrasts) // EXAMPLES]
        examples = [(contrast.text, style) for contrast in chosen for style in contrast.styles]
    return World(styles, tuple(examples), scripted, _untyped(), dataset)


def _examples(dataset: Manifest | None, contrasts: int) -> list[Query]:
    """Return the labelled test questions of the first contrasts, of the categories in turn."""
    queries = [] if dataset is None else [query for query in dataset.of_role("test") if query.text and query.style]
    chosen = choose_contrasts(queries)[:contrasts]
    return [query for contrast in chosen for query in queries if query.contrast_id == contrast]


def _untyped() -> str:
    try:
        asset_path("piper_voice")
    except AssetError as error:
        return f"Typed questions cannot be spoken here: {error}"
    return ""
