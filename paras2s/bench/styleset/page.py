"""The page of `bench styleset`: scores with intervals, and each output to play with what every judge said of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from paras2s.bench.players import Player, player_of
from paras2s.bench.styleset.data import VERDICT_TASKS, Task
from paras2s.bench.styleset.metrics import TITLES, HumanRow, StyleRow, table_1_scores
from paras2s.bench.styleset.outputs import Made, judged_clip
from paras2s.errors import AudioError
from paras2s.reward.judges.audio_judge.tasks import SCALES, find_task
from paras2s.statistics.intervals import ends_of_share
from paras2s.utils.html import page_template
from paras2s.utils.io import write_text

# A system's role-plays with their sound; each is a minute, and a page of more would be slow to open.
PLAYED_ROLE_PLAYS = 3
RECORDED = "Recorded verdicts: the clip is where it was judged."


def mean_interval(scores: Sequence[float], low: float, high: float) -> tuple[float, float] | None:
    """Return Student's 95 % interval of the mean of items' scores on a scale from low to high; None if undefined.

    Shares of 0 and 1 have Wilson's. Scores of a longer scale that are all alike say nothing of their spread.
    """
    if len(scores) < 2:
        return None
    mean, deviation = fmean(scores), stdev(scores)
    if deviation == 0:
        return ends_of_share(mean, mean, mean, len(scores)) if (low, high) == (0, 1) and mean in (0, 1) else None
    from scipy.stats import t

    half = float(t.ppf(0.975, len(scores) - 1)) * deviation / len(scores) ** 0.5
    return max(low, mean - half), min(high, mean + half)


@dataclass(frozen=True)
class PageOutput:
    """One output of a system: what was asked, its sound or the reason why it is not on the page, and every judge's verdict."""

    item: str
    system: str
    inputs: tuple[str, ...]
    player: Player | None
    where: str
    verdicts: tuple[StyleRow, ...]


def write_page(
    path: Path, rows: Sequence[StyleRow], ratings: Sequence[HumanRow], made: Mapping[str, Mapping[Task, Sequence[Made]]],
    stopped: str | None,
) -> None:  # fmt: skip
    """Write the page. Raises StorageError: the disk refused."""
    scores = table_1_scores(rows, ratings)
    sections = [
        {
            "title": title,
            "rows": [row for system, judges in scores[task].items() for row in _rows(task, system, judges)],
            "outputs": _outputs(task, rows, made),
        }
        for task, title in TITLES.items()
        if task in scores
    ]
    page = page_template(Path(__file__).with_name("page.html.j2")).render(sections=sections, stopped=stopped)
    write_text(path, page)


def _rows(task: str, system: str, judges: Mapping[str, Sequence[float | None]]) -> list[tuple[str, ...]]:
    low, *_, high = SCALES[find_task(task).kind]
    rows: list[tuple[str, ...]] = []
    for judge, scores in judges.items():
        known = [score for score in scores if score is not None]
        interval = mean_interval(known, low, high)
        rows.append(
            (
                system,
                judge,
                f"{fmean(known):.2f}" if known else "none",
                f"({interval[0]:.2f} to {interval[1]:.2f})" if interval else "none",
                f"{len(known)} of {len(scores)}",
            )
        )
    return rows


def _outputs(task: str, rows: Sequence[StyleRow], made: Mapping[str, Mapping[Task, Sequence[Made]]]) -> list[PageOutput]:
    verdicts: dict[tuple[str, str], list[StyleRow]] = defaultdict(list)
    for row in rows:
        if row.task == task:
            verdicts[row.system, row.item].append(row)
    known = {
        (system, entry.item.id): entry
        for system, tasks in made.items()
        for kind, ones in tasks.items()
        if task in VERDICT_TASKS[kind]
        for entry in ones
    }
    played: dict[str, int] = defaultdict(int)
    outputs = []
    for (system, item), given in verdicts.items():
        entry = known.get((system, item))
        inputs: tuple[str, ...] = ()
        player, where = None, RECORDED
        if entry is not None:
            inputs = tuple(entry.item.judge_inputs().values())
            player, where = _player(task, entry, played[system])
            played[system] += 1
        outputs.append(PageOutput(item, system, inputs, player, where, tuple(given)))
    return outputs


def _player(task: str, made: Made, played: int) -> tuple[Player | None, str]:
    """Return the clip as it was judged, or where its file is."""
    if made.path is None:
        return Player(None, made.output.unscored or "nothing to judge"), ""
    # Realism is judged of the same clip, which is above with its style.
    if task == "role_play_realism" or (task == "role_play_style" and played >= PLAYED_ROLE_PLAYS):
        return None, f"To be heard in {made.path}"
    try:
        return player_of(judged_clip(made.item, made.path)), ""
    except AudioError as error:
        return Player(None, str(error)), ""
