"""A command killed by signal 9 in the midst of a write goes on to the undisturbed end; and the campaign sees what differs.

Not covered: other moments and the other stages, with Ray, which `make chaos` kills a hundred times.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pipeline.test_warmup import demonstrations
from tiny.dual_stream import small_config, small_model, small_policy

from chaos.kills import differences, without_tracker
from paras2s.configs.schema.run import RunConfig
from paras2s.pipeline import warmup
from paras2s.run import Run
from paras2s.utils import lock
from paras2s.utils.progress import open_console

TESTS = Path(__file__).resolve().parents[1]
CODE = """
import sys
from pathlib import Path
from chaos.test_kills import die_in, warm_up
die_in(sys.argv[2])
warm_up(Path(sys.argv[1]))
"""
STILL = {"words_dropped": 0.0, "codes_dropped": 0.0, "prosody_noise": 0.0, "words_noise": 0.0}


def warm_up(folder: Path) -> None:
    """Warm a tiny policy up on made demonstrations; the loop, its checkpoints, its log and its lock are real."""
    own: Any = warmup
    own.first_policy = lambda *_: small_policy(small_model(small_config()).float())
    own.make_examples, own.learned_demonstrations, own.CHECKPOINT_EVERY = demonstrations, lambda *_: [], 2
    settings = {"steps": 5, "batch_size": 2, "augment": STILL}
    config = RunConfig.model_validate({"run_dir": folder, "cache_dir": folder.parent, "warmup": settings})
    run = Run(config, open_console(), quiet=True)
    run.open()
    warmup.run_warmup(run, None)  # type: ignore[arg-type]


def die_in(name: str) -> None:
    """Die by signal 9 once a file of this name is written, and has not yet its name."""
    replace = os.replace

    def replace_or_die(source: str, target: Path) -> None:
        if str(target).endswith(name):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = replace_or_die  # type: ignore[assignment]


def test_a_warm_up_killed_while_it_writes_a_checkpoint_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first_policy", "make_examples", "learned_demonstrations", "CHECKPOINT_EVERY"):
        monkeypatch.setattr(warmup, name, getattr(warmup, name))
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    warm_up(straight)
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    command = [sys.executable, "-c", CODE, str(killed), "step_000004/trainer.json"]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (killed / "sft").exists()
    assert list(killed.rglob(".unfinished-*"))
    warm_up(killed)
    # Which names its folder.
    assert differences(killed, straight) == ["config.resolved.yaml: differs"]
    for folder in (straight, killed):
        lock._held.pop(folder.resolve()).close()


def test_what_differs_is_seen_and_times_are_not(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, took_s, reward in ((one, 1.0, 2.0), (other, 9.0, 3.0)):
        (folder / "sub").mkdir(parents=True)
        (folder / "log.jsonl").write_text(json.dumps({"step": 0, "seconds_sampling": took_s}) + "\n")
        (folder / "sub/model.json").write_text(json.dumps({"reward": reward}))
        (folder / "took.json").write_text(str(took_s))
    (one / "a").touch()
    (other / "b").touch()
    assert differences(one, other) == [
        "b: missing", "a: not of the undisturbed run", "sub/model.json: differs",
    ]  # fmt: skip


def test_only_the_tracebacks_of_a_killed_tracker_are_passed_over() -> None:
    head = "Traceback (most recent call last):\n"
    tracker = head + (
        '  File "/usr/lib/python3.11/multiprocessing/resource_tracker.py", line 239, in main\n'
        "    cache[rtype].remove(name)\nKeyError: '/loky-27281-mamu8jhy'\n"
    )
    assert without_tracker(f"one\n{tracker}{tracker}two\n") == "one\n\n\ntwo\n"
    ours = head + '  File "/x/paras2s/run.py", line 1, in open\nKeyError: 1\n'
    assert without_tracker(tracker + ours) == "\n" + ours
