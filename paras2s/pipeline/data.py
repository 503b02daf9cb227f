"""The data stage of a run: the shipped scripts, or a curated dataset, to a dataset on disk."""

from __future__ import annotations

from collections import Counter

from paras2s.bench.paras2s.scripted_baselines import baseline_takes
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.dataset import Dataset, load_dataset
from paras2s.data_gen.import_curated import import_curated
from paras2s.data_gen.scripted.build import build_dataset
from paras2s.data_gen.scripted.scripts import load_contrasts
from paras2s.data_gen.tts.render import Take
from paras2s.pipeline.other_answers import plan_spoken
from paras2s.run import Run


def run_data(run: Run) -> Dataset:
    """Build the dataset, or load it where it is complete."""
    if (run.data_dir / "queries.parquet").is_file():
        dataset = load_dataset(run.data_dir)
        run.headline("data: cached")
        return dataset
    config = run.config
    with run.stage("data"), run.bar("scripts spoken") as speech, run.bar("clips transcribed") as words:
        bars = {"speech": speech, "words": words}

        def at(name: str, done: int, total: int) -> None:
            bars[name].at(done, total)

        if config.data.curated is not None:
            dataset = import_curated(config.data.curated, run.data_dir, config.cache_dir, at)
        else:
            beside = takes_of_later_stages(config.data)
            dataset = build_dataset(config.data, config.seed, run.data_dir, config.cache_dir, at, beside)
    describe_dataset(run, dataset)
    return dataset


def takes_of_later_stages(config: DataConfig) -> list[Take]:
    """Return the takes that do not depend on the policy: other answers for the reward model, and the bench's baselines."""
    styles = {style for contrast in load_contrasts() if contrast.category in config.categories for style in contrast.styles}
    return [*(planned.take for planned in plan_spoken(sorted(styles))), *baseline_takes(sorted(styles), config.categories)]


def describe_dataset(run: Run, dataset: Dataset) -> None:
    """Log the number of clips, the tone classifiers' accuracy and the style check."""
    roles = Counter(query.role for query in dataset.queries)
    rejected = sum(candidate.rejected is not None for candidate in dataset.candidates)
    run.say(
        f"  {len(dataset.candidates)} clips spoken, {rejected} rejected (reasons in candidates.parquet); "
        + ", ".join(f"{count} {role}" for role, count in sorted(roles.items()))
    )
    for name, tone in (("users' styles", dataset.user_tone), ("agent's tones", dataset.agent_tone)):
        report = tone.report
        run.detail(f"  tone classifier of the {name}: {report['accuracy']:.3f} on {report['n']} clips of held-out speakers")
    audibility = dataset.audibility
    run.detail(
        f"  style check: a plain classifier tells the two styles apart for {audibility['accuracy']:.3f} of "
        f"{audibility['clips']} held-out clips (chance 0.5)"
    )
