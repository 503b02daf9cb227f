"""A run: its folder, its progress on the terminal, its log, and how long each stage took."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paras2s import __version__
from paras2s.configs.schema.base import Section, dump_config, expanded, parse_config, preset_path, shipped_presets
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import ConfigError, DataError, StorageError
from paras2s.train.algorithm import check_algorithm
from paras2s.utils.io import append_jsonl, drop_steps_from, parse_yaml, read_json, read_jsonl, read_text, write_json, write_text
from paras2s.utils.lock import hold
from paras2s.utils.machine import describe_machine
from paras2s.utils.progress import Bar, open_console, progress_bar
from paras2s.utils.suggest import nearest_file
from paras2s.utils.tracker import Trackers

if TYPE_CHECKING:
    from paras2s.policy.base import Policy
    from paras2s.reward.sources.composite import RewardSetup

STAGES = ("data", "warmup", "distill", "align", "bench")


RESOLVED, ORIGIN, PROGRESS = "config.resolved.yaml", "origin.json", "progress.json"
# What the report of a finished run says beside its figures; the page itself is made by the studio.
REPORT = "report.json"
# In the folder that a stage makes: the seconds it took, for all runs that share the stage.
TOOK = "took.json"
# Settings of a run that another start of it may change: they do not shape what comes out.
MAY_CHANGE = (
    "run_dir",
    "trackers",
    "warmup.learner",
    "distill.rollout",
    "distill.omni.checkpoint_every",
    "align.keep_rollouts_every",
    "align.keep_checkpoints",
)


# The files that a folder held before a command of this process claimed it.
_before: dict[Path, set[str]] = {}


def claim_folder(folder: Path, config: Section, may_change: Collection[str] = (), wait: bool = False) -> None:
    """Write a resolved config into its folder, or refuse a folder with another config, or that another process works in.

    `may_change`: dotted keys of what does not shape the outcome, such as a budget; a section's is that of all its settings.
    `wait`: until the other process ends. A setting that came after the folder's version has its default there.

    Raises:
        ConfigError: the folder belongs to a run with other settings, names the first of them; or another process holds it.
    """
    hold(folder, wait)
    path, resolved = folder / RESOLVED, dump_config(config)
    if not path.is_file():
        _before[folder] = set(os.listdir(folder))
    if path.is_file() and (held := read_text(path)) != resolved:
        with contextlib.suppress(ConfigError):
            held = dump_config(parse_config(parse_yaml(held, path), str(path), type(config)))
        existing, new = (flatten(parse_yaml(text, path)) for text in (held, resolved))
        free = tuple(f"{key}." for key in may_change)
        changed = {key for key in existing.keys() | new.keys() if existing.get(key) != new.get(key)}
        other = sorted(key for key in changed if not f"{key}.".startswith(free))
        if other:
            raise ConfigError(
                f"{path}: this folder holds a run with other settings ({other[0]}: {existing.get(other[0])!r}); choose another "
                "folder, or delete it"
            )
    write_text(path, resolved)


def release_folder(folder: Path) -> None:
    """Take a claim back that nothing came of, so that the same command with other settings is not refused."""
    before = _before.pop(folder, None)
    own = {RESOLVED, ORIGIN, PROGRESS}
    if before is not None and set(os.listdir(folder)) <= before | own:
        for name in own - before:
            (folder / name).unlink(missing_ok=True)


def flatten(settings: Any, before: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys; lists are values."""
    if not isinstance(settings, dict):
        return {before[:-1]: settings}
    return {key: value for name, inner in settings.items() for key, value in flatten(inner, f"{before}{name}.").items()}


@dataclass(frozen=True)
class Run:
    """Paths and output of a run. `quiet`: no bars; `verbose`: diagnostics; `anyway`: go on with what its audit refused."""

    config: RunConfig
    console: Console
    quiet: bool = False
    verbose: bool = False
    anyway: bool = False

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self.config.run_dir

    @property
    def data_dir(self) -> Path:
        """Made by `data`."""
        return self.folder / "data"

    @property
    def sft_dir(self) -> Path:
        """Made by `warmup`."""
        return self.folder / "sft"

    @property
    def reward_dir(self) -> Path:
        """Made by `distill`."""
        return self.folder / "reward"

    @property
    def aligned_dir(self) -> Path:
        """Made by `align`."""
        return self.folder / "aligned"

    def load_policy(self, folder: Path) -> Policy:
        """Load one of this run's policies, on the device and in the precision of its config."""
        from paras2s.policy.registry import load_policy

        policy = self.config.policy
        return load_policy(folder, policy.kind, policy.device, policy.torch_dtype, policy.decoder)

    @property
    def refreshed_dir(self) -> Path:
        """Made by `align` where it trains the reward model again; the distilled one may be shared with other runs."""
        return self.folder / "reward_refreshed"

    def refreshed_models(self) -> dict[int, Path]:
        """Return the folders of such reward models that are whole, by the updates that the policy had seen, in order."""
        reports = self.refreshed_dir.glob("step_*/agreement.json")
        return dict(sorted((int(path.parent.name.removeprefix("step_")), path.parent) for path in reports))

    def reward_setup(self, updates: int | None = None) -> RewardSetup:
        """Return the reward workers' inputs after `updates` updates (None: all), with paths that hold wherever they start."""
        from paras2s.reward.sources.composite import RewardSetup

        model, tone = self.reward_dir.resolve(), (self.data_dir / "tone_agent.json").resolve()
        refreshed = [path.resolve() for after, path in self.refreshed_models().items() if updates is None or after <= updates]
        setup = RewardSetup(self.config.reward, model, tone, refreshed[-1] if refreshed else None)
        if not setup.needs("self_contrast"):
            return setup
        # It brings torch and the policies.
        from paras2s.rollout.answer_reader import open_reader

        return replace(setup, open_reader=partial(open_reader, self.sft_dir.resolve(), self.config.policy))

    @property
    def metrics_path(self) -> Path:
        """One row a GRPO step."""
        return self.folder / "metrics.jsonl"

    def open(self, wait: bool = False) -> None:
        """Write the resolved config, version and machine of the run, or refuse a folder that is another run's.

        `wait`: until another process that works in the folder ends.

        Raises:
            ConfigError: the folder belongs to a run with other settings, or another process holds it.
        """
        self.trackers.check()
        # The kept answers are what a refresh of the reward model learns from.
        shaping = () if not self.config.refreshes else ("align.keep_rollouts_every",)
        claim_folder(self.folder, self.config, [key for key in MAY_CHANGE if key not in shaping], wait)
        if not (self.folder / ORIGIN).is_file():
            write_json(self.folder / ORIGIN, {"version": __version__, "commit": source_commit(), "machine": describe_machine()})

    def say(self, text: str) -> None:
        """Print a line for people."""
        if not self.quiet:
            self.console.print(text, markup=False, emoji=False)

    def headline(self, text: str) -> None:
        """Print a line for people above those that belong to it."""
        if not self.quiet:
            self.console.print(text, style="bold", markup=False, emoji=False)

    def detail(self, text: str) -> None:
        """Print a line of diagnostics, if asked for by -v."""
        if self.verbose:
            self.say(text)

    @contextlib.contextmanager
    def bar(self, name: str, total: int | None = None) -> Iterator[Bar]:
        """Show a progress bar with the time left, which the run folder tells as well."""
        with progress_bar(self.console, name, total, self.quiet, self.save_progress) as bar:
            yield bar

    def save_progress(self, name: str, done: int, total: int, left_s: float | None) -> None:
        """Write the progress into the run folder; a full disk is reported by the files that the run must write."""
        with contextlib.suppress(StorageError):
            write_json(self.folder / PROGRESS, {"name": name, "done": done, "total": total, "left_s": left_s})

    @contextlib.contextmanager
    def stage(self, name: str, earlier_s: float = 0.0) -> Iterator[None]:
        """Time a stage; the time is kept for the next run's first line, if the stage ends well.

        `earlier_s`: what earlier starts took for the part of it that they finished.
        """
        started = time.perf_counter()
        self.headline(name)
        try:
            yield
        except Exception:
            release_folder(self.folder)
            raise
        (self.folder / PROGRESS).unlink(missing_ok=True)
        took_s = earlier_s + time.perf_counter() - started
        if name in self._shareable:
            write_json(self._shareable[name] / TOOK, {name: round(took_s, 1)})
        timings = self.timings() | {name: round(took_s, 1)}
        write_json(self.folder / "timings.json", timings)
        write_json(self.config.cache_dir / f"timings.{self.config.name}.json", timings)

    @property
    def _shareable(self) -> dict[str, Path]:
        return {"data": self.data_dir, "warmup": self.sft_dir, "distill": self.reward_dir}

    def timings(self) -> dict[str, float]:
        """Return the seconds of each finished stage, of this run or of the run that it shares the stage with."""
        paths = [*(folder / TOOK for folder in self._shareable.values()), self.folder / "timings.json"]
        return {name: took_s for path in paths if path.is_file() for name, took_s in read_json(path).items()}

    def last_time(self) -> dict[str, float] | None:
        """Return the seconds of each stage in the last run of this name on this machine."""
        path = self.config.cache_dir / f"timings.{self.config.name}.json"
        try:
            return dict(read_json(path)) if path.is_file() else None
        except DataError:
            return None

    def logged_s(self, before: int) -> float:
        """Return the seconds of the logged steps before a step; 0 where nothing is logged."""
        return sum(float(row.get("seconds", 0.0)) for row in self.metrics() if row["step"] < before)

    def log_step(self, row: dict[str, Any]) -> None:
        """Add one step to metrics.jsonl, and to the trackers that are requested."""
        append_jsonl(self.metrics_path, row)
        self.trackers.log(row)

    @property
    def trackers(self) -> Trackers:
        """Trackers of other makers, beside the run's own log."""
        return Trackers(self.config.trackers, self.folder, self.config.name, self.say)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all steps logged."""
        return list(read_jsonl(self.metrics_path)) if self.metrics_path.is_file() else []

    def drop_steps_from(self, step: int) -> None:
        """Forget logged steps that are about to be done again."""
        drop_steps_from(self.metrics_path, step)


def source_commit() -> str | None:
    """Return the commit of the checkout that this package is imported from; None for an installed one."""
    checkout = Path(__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        return None
    try:
        git = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return git.stdout.strip() or None if git.returncode == 0 else None


def open_run(
    config: str | Path,
    overrides: dict[str, Any] | None = None,
    seed: int | None = None,
    run_dir: Path | None = None,
    quiet: bool = False,
    verbose: bool = False,
    anyway: bool = False,
) -> Run:
    """Open a run by a preset's name, a YAML config, or a run folder; nothing is written before a stage starts.

    Another seed has a run folder of its own. `quiet` drops progress bars and log lines; `verbose` adds diagnostics;
    `anyway` goes on with a judge or a reward that its audit refused.

    Raises:
        ConfigError: no such preset or file, bad YAML, unknown key, bad value, settings that do not fit the algorithm.
    """
    path = Path(config)
    # A preset's name is never looked for on disk: a run's folder may be called like it.
    if str(config) not in shipped_presets() and (path / RESOLVED).is_file():
        # A folder may have moved since its config was written.
        overrides = {"run_dir": str(path)} | (overrides or {})
        path = path / RESOLVED
    elif path.suffix not in (".yaml", ".yml"):
        if str(config) not in shipped_presets() and (path.is_dir() or len(path.parts) > 1):
            raise ConfigError(_no_run(path))
        path = preset_path(str(config))
    settings = with_run_dir(load_config(path, overrides), run_dir, seed)
    check_algorithm(settings.align)
    return Run(settings, open_console(to_stderr=quiet), quiet, verbose, anyway)


def kind_in_run(checkpoint: Path) -> str | None:
    """Return `policy.kind` of the run around a checkpoint; None outside of a run."""
    for folder in checkpoint.resolve().parents:
        if (folder / RESOLVED).is_file():
            return load_config(folder / RESOLVED).policy.kind
    return None


def _no_run(folder: Path) -> str:
    """Return why a folder is no run, and the runs beside it, in it or around it."""
    around = next((parent for parent in folder.absolute().parents if (parent / RESOLVED).is_file()), None)
    why = f"no run is in it (no {RESOLVED})" if folder.is_dir() else f"no such folder{nearest_file(folder)}"
    parents = [parent for parent in (folder, folder.parent) if parent.is_dir()]
    runs = [around] if around else [path.parent for parent in parents for path in sorted(parent.glob(f"*/{RESOLVED}"))]
    known = f"give {' or '.join(map(str, runs[:8]))}" if runs else "give the folder of a run, a preset or a YAML"
    return f"{folder}: {why}; {known}"


def with_run_dir(config: RunConfig, run_dir: Path | None, seed: int | None) -> RunConfig:
    """Return the config under another seed, in a run folder of its own, or in another run folder."""
    values: dict[str, Any] = {}
    if seed is not None:
        parse_config({"seed": seed}, "--seed", RunConfig)
        values = {"seed": seed, "run_dir": config.run_dir.with_name(f"{config.run_dir.name}-seed{seed}")}
    if run_dir is not None:
        values["run_dir"] = expanded(run_dir)
    return config.model_copy(update=values)
