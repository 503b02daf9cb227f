"""The card of an exported policy, README.md of its folder: base, data, reward, training, scores, and the config of its run.

Everything is read from the run's folder; missing figures are named as not measured. The licence is left to the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from paras2s import __version__
from paras2s.bench.audit import audit_warnings
from paras2s.bench.results import load_rows
from paras2s.bench.stats import contrast_metric, summarise
from paras2s.configs.schema.base import dump_config
from paras2s.rollout.validation_answers import step_folder
from paras2s.run import ORIGIN, Run
from paras2s.statistics.means import Counted, Estimate, clustered_mean
from paras2s.utils.io import read_json, read_jsonl, reading
from paras2s.utils.tables import Table, span


def model_card(run: Run, updates: int, adapters: bool, missing: Sequence[str]) -> str:
    """Write the card of the policy after n updates; `missing` names absent components. Raises DataError: a broken file."""
    config = run.config
    base = config.policy.weights.name if config.policy.weights else "none"
    parts = [
        "---",
        "# license: choose one; those of the base model and of the data bind it",
        "library_name: paras2s",
        "pipeline_tag: audio-to-audio",
        *([f"base_model: {base}"] if config.policy.weights else []),
        "tags: [speech-to-speech, reinforcement-learning, paras2s]",
        "---",
        "",
        f"# {config.name}, after {updates} of {config.align.steps} updates",
        "",
        "A speech-to-speech policy that was post-trained on both of its streams, text and speech, by `paras2s align`.",
        "",
        *_loading(adapters, missing),
        "## How it was made",
        "",
        Table(("", ""), _facts(run)).markdown(),
        "",
        "## Scores",
        "",
        _scores(run, updates).markdown(),
        "",
        *(line for said in audit_warnings(run.folder) for line in (said, "")),
        "## Config",
        "",
        "```yaml",
        dump_config(config).rstrip(),
        "```",
        "",
    ]
    return "\n".join(parts)


def _loading(adapters: bool, missing: Sequence[str]) -> list[str]:
    lines = ["```python", "import paras2s", "", 'policy = paras2s.open_policy("this/folder")', "```", ""]
    if adapters:
        lines += ["The folder holds adapters alone; `adapter_config.json` names the weights beneath them.", ""]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        lines += [f"Not in this folder: {names}. Copy them from the base model's, into this folder or beside it.", ""]
    return lines


def _facts(run: Run) -> list[tuple[str, str]]:
    config = run.config
    align, objective = config.align, config.align.objective
    origin = read_json(run.folder / ORIGIN) if (run.folder / ORIGIN).is_file() else {}
    sources = [f"{source.key} ({source.kind}), weight {source.weight:g}" for source in config.reward.sources]
    trained = "all weights" if align.lora is None else f"adapters of rank {align.lora.rank}, alpha {align.lora.alpha}"
    warmup = f"{config.warmup.steps} steps of {config.warmup.batch_size}" if config.warmup.steps else "none"
    return [
        ("base", config.policy.weights.name if config.policy.weights else "none: the embedded policy, from random weights"),
        ("data", _data(run)),
        ("warm-up", warmup),
        ("reward", "; ".join(sources)),
        (
            "alignment",
            f"{objective.loss_type}, {align.sampling.queries_per_step} queries x {align.sampling.group_size} answers a step, "
            f"learning rate {align.optimizer.lr:g}, KL weight {objective.kl_weight:g}, {trained}",
        ),
        ("seed", str(config.seed)),
        ("run begun by", f"paras2s {origin.get('version', 'of unknown version')}, commit {origin.get('commit') or 'unknown'}"),
        ("exported by", f"paras2s {__version__}"),
    ]


def _data(run: Run) -> str:
    rows = _queries(run)
    if rows is None:
        return "not in the run's folder any more"
    counts = Counter(row["role"] for row in rows)
    where = f"curated set {run.config.data.curated.name}" if run.config.data.curated else "scripted questions"
    return f"{where}: " + ", ".join(f"{count} {role}" for role, count in sorted(counts.items()))


def _queries(run: Run) -> list[dict[str, Any]] | None:
    path = run.data_dir / "queries.parquet"
    if not path.is_file():
        return None
    with reading(path):
        return list(pq.read_table(path, columns=["id", "contrast_id", "role"]).to_pylist())


def _scores(run: Run, updates: int) -> Table:
    scores = [("reward of answers to validation queries", validation_score(run, updates))]
    if updates == run.config.align.steps and (run.folder / "bench" / "aligned.jsonl").is_file():
        benched = load_rows(run.folder / "bench" / "aligned.jsonl")
        judge = benched[0].judge if benched else "no judge"
        scores.append((f"score, 1 to 5, of held-out queries by {judge}", summarise(benched).overall))
        scores.append(("share of contrasts told apart", contrast_metric(benched)))
    rows = [(name, *([f"not measured: {score}"] if isinstance(score, str) else _cells(score))) for name, score in scores]
    return Table(("", "mean", "95 % interval", "scored"), rows)


def _cells(score: Counted) -> list[str]:
    mean, interval = score.estimate.mean, score.interval()
    ends = "of one cluster: unknown" if interval is None else span(*interval)
    means = ["not measured: nothing was scored", ""] if mean is None else [f"{mean:.2f}", ends]
    return [*means, f"{score.estimate.n} of {score.n_asked}"]


def validation_score(run: Run, updates: int) -> Counted | str:
    """Return the run's own reward of the answers stored after n updates, or why there is none."""
    path = step_folder(run.folder, updates - 1) / "answers.jsonl"
    if not path.is_file():
        return f"no validation queries were sampled after {updates} updates"
    contrasts = {row["id"]: row["contrast_id"] for row in _queries(run) or ()}
    rows = list(read_jsonl(path))
    scored = [(float(row["reward"]), contrasts.get(row["query_id"], row["query_id"])) for row in rows if "reward" in row]
    estimate = clustered_mean([value for value, _ in scored], [cluster for _, cluster in scored])
    return Counted(estimate if scored else Estimate(None, None, 0, 0), len(rows))
