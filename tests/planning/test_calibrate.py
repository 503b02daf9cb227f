"""Plans that are calibrated by a timed run: factors by hand, the timed run's own plan, refusals, the command.

Not covered: whether a factor holds on another cluster of the same device; docs/scale.md has two settings on this machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tiny.plans import RATES, kimi_plan
from typer.testing import CliRunner

from paras2s.cli.plan import plan
from paras2s.configs.schema.base import preset_path
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import ConfigError, DataError
from paras2s.planning.calibrate import PARTS, WITHIN, PhaseTimes, calibrate, part_factor, refuse_other_device
from paras2s.planning.cluster import load_cluster, policy_facts
from paras2s.planning.simulate import make_plan
from paras2s.rollout.phase_times import logged_seconds, read_phase_times
from paras2s.rollout.timeline import Span

RUN = RunConfig()
HERE = load_cluster("this_machine", RATES)
KNOWN = policy_facts(RATES, RUN.policy)
ONE_EACH = {"rollout": 1, "reward": 1, "learner": 1}
# Of an engine that does not tell prompts from answers.
SECONDS = {"sample": 3.0, "speak": None, "judge": 0.5, "learn": 7.0, "sync": 0.1}


def times(**changes: Any) -> PhaseTimes:
    return PhaseTimes(**({"seconds": SECONDS, "step_s": 11.0, "length_steps": 32.0, "steps": 5, "workers": ONE_EACH} | changes))


def span(worker: str, work: str, start_s: float, end_s: float) -> dict[str, Any]:
    return {"worker": f"{worker} on vm", "work": work, "start_s": start_s, "end_s": end_s}


def write_run(folder: Path, steps: int, evaluated: tuple[int, ...] = (), **config: Any) -> Path:
    """Steps of two samplers (2 s and 3 s, half of the second's in another span), a judge of 0.5 s, an update of 7 s."""
    rows, metrics = [], []
    for step in range(steps):
        spans = [
            span("rollout 1", "sample", 0, 2), span("rollout 2", "sample", 0, 1.5), span("rollout 2", "sample", 2, 3.5),
            span("rollout 2", "load weights", 0, 0.25), span("learner 4", "gather weights", 0, 0.5),
            span("reward 3", "score", 3, 3.5), span("learner 4", "update", 4, 11),
        ]  # fmt: skip
        spans += [span("loop 0", "evaluate", 12, 99), span("rollout 1", "sample", 12, 90)] if step in evaluated else []
        # The first two steps start libraries: they must not count.
        slow = 50.0 if step < 2 else 0.0
        spans += [span("learner 4", "update", 11, 11 + slow)]
        rows.append({"step": step, "spans": spans})
        metrics.append({"step": step, "seconds": 11.5 + slow, "length_steps": 30 + step})
    folder.mkdir(exist_ok=True)
    for name, found in (("timeline.jsonl", rows), ("metrics.jsonl", metrics)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in found))
    (folder / "config.resolved.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_times_are_those_of_the_slowest_worker_without_first_steps_and_evaluation(tmp_path: Path) -> None:
    found = read_phase_times(write_run(tmp_path, 7, evaluated=(4,)))
    nothing = dict.fromkeys(("encode", "prefill", "decode", "speak"))
    assert found.seconds == {"sample": 3.0, "judge": 0.5, "learn": 7.0, "sync": 0.75, **nothing}
    assert found.encoded_s is None
    assert (found.step_s, found.steps) == (11.5, 4)
    # Steps 2, 3, 5 and 6.
    assert found.length_steps == 34.0
    assert found.workers == {"rollout": 2, "speak": 0, "reward": 1, "learner": 1}


def test_a_steps_log_has_its_parts_and_a_prompts_encoding() -> None:
    spans = [
        Span("rollout 1", "encode", 0, 3), Span("rollout 2", "encode", 0, 1), Span("rollout 1", "prefill", 3, 4),
        Span("rollout 1", "decode", 4, 6), Span("rollout 1", "prefill", 6, 7), Span("speak 3", "speak", 5, 9),
        Span("reward 4", "score", 9, 9.5), Span("learner 5", "update", 10, 12), Span("learner 5", "gather weights", 12, 12.25),
        Span("rollout 2", "load weights", 13, 13.5), Span("loop 0", "log and checkpoint", 0, 99),
    ]  # fmt: skip
    parts = {"encode": 3, "prefill": 2, "decode": 2, "speak": 4, "judge": 0.5, "learn": 2, "sync": 0.75}
    logged = {f"seconds_of_{part}": seconds for part, seconds in parts.items()}
    assert logged_seconds(spans, encoded=0) == logged
    assert logged_seconds(spans, encoded=8) == logged | {"seconds_a_prompt_encoded": 0.5}


def test_prefill_and_decoding_are_corrected_apart_and_encoding_by_the_prompt() -> None:
    """A run of Kimi-Audio's plan: B = 32 queries over 8 devices are 4 prompts a step and worker."""
    run = load_config(preset_path("kimi_paper"))
    on = load_cluster("h100x8", RATES)
    known = policy_facts(RATES, run.policy)
    apart = {"prefill": 1.0, "decode": 20.0, "speak": 30.0, "learn": 3.0}
    eight = {"rollout": 8, "speak": 0, "reward": 8, "learner": 8}
    found = calibrate(run, on, RATES, known, times(seconds=apart, workers=eight, length_steps=395.0, encoded_s=0.25))
    phases = make_plan(run, on, RATES, known, answer_s=(395 - 7) / 12.5, factors=found.factors).phases
    assert (phases.encode, phases.read, phases.decode) == pytest.approx((1.0, 1.0, 20.0))
    assert phases.speak == pytest.approx(30)
    assert found.factors["straggling"] == found.factors["decode"] != found.factors["read"]
    assert [one.part for one in found.parts if one.why_none] == ["sample", "judge", "sync"]


def test_a_worker_that_was_replaced_is_not_one_more(tmp_path: Path) -> None:
    rows = (write_run(tmp_path, 7) / "timeline.jsonl").read_text().splitlines(keepends=True)
    replaced = [row.replace("rollout 2", "rollout 9") if number > 3 else row for number, row in enumerate(rows)]
    (tmp_path / "timeline.jsonl").write_text("".join(replaced))
    assert read_phase_times(tmp_path).workers == {"rollout": 2, "speak": 0, "reward": 1, "learner": 1}


def test_a_factor_is_measured_over_predicted_and_absent_where_one_is_nothing() -> None:
    assert part_factor("sample", 2.0, 3.0).factor == 1.5
    assert part_factor("speak", 2.0, None).why_none == part_factor("speak", 2.0, 0.0).why_none == "the run did no such work"
    assert part_factor("speak", 0.0, 1.0).why_none == "the plan has no such work in this run"


def test_the_timed_runs_own_plan_has_the_times_that_were_measured() -> None:
    found = calibrate(RUN, HERE, RATES, KNOWN, times())
    # 32 steps less the delay of 1 and the end, at 12.5 a second.
    plan = make_plan(RUN, HERE, RATES, KNOWN, answer_s=30 / 12.5, factors=found.factors)
    phases = plan.phases
    assert phases.read + phases.decode == pytest.approx(3.0)
    assert phases.judge == pytest.approx(0.5)
    assert phases.learner == pytest.approx(7.0)
    assert phases.sync == pytest.approx(0.1)
    # The embedded policy has no vocoder: no factor, and no number made up for it.
    assert [one.part for one in found.parts if one.factor is None] == ["encode", "prefill", "decode", "speak"]
    assert plan.rhythm.step_s == pytest.approx(3.0 + 0.5 + 7.0 + 0.1, rel=0.05)
    assert found.predicted_step_s == make_plan(RUN, HERE, RATES, KNOWN, answer_s=30 / 12.5).rhythm.step_s


def test_unlike_lengths_are_a_part_of_decoding_and_memory_stays() -> None:
    plain = kimi_plan()
    factors = {"decode": 2.0, "straggling": 2.0}
    assert plain.phases.times(factors).straggling == 2 * plain.phases.straggling
    assert plain.phases.times(factors).rollout == pytest.approx(plain.phases.rollout + plain.phases.decode)
    assert plain.phases.times({}) == plain.phases
    assert {name for names in PARTS.values() for name in names} | set(WITHIN) == set(vars(plain.phases))


def test_a_run_on_other_workers_or_another_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 rollout workers were timed, and this_machine has 1; .*--measured-on"):
        calibrate(RUN, HERE, RATES, KNOWN, times(workers={**ONE_EACH, "rollout": 2}))
    refuse_other_device(HERE, HERE)
    with pytest.raises(ConfigError, match="its device differs from that of h100x8"):
        refuse_other_device(load_cluster("h100x8", RATES), HERE)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("timeline.jsonl", None, "timeline.jsonl: no such file"),
        ("timeline.jsonl", '{"step": 2, "spans": [{"worker": "a"}]}\n', "step 2: a span cannot be read"),
        ("metrics.jsonl", '{"step": 2}\n{"step": 3}\n{"step": 4}\n', "a step has no number for 'seconds'"),
        ("metrics.jsonl", '{"step": 2}\n', "1 steps of it were timed"),
    ],
)
def test_a_run_without_times_is_refused_by_its_file(tmp_path: Path, file: str, text: str | None, message: str) -> None:
    run = write_run(tmp_path, 7)
    (run / file).unlink() if text is None else (run / file).write_text(text)
    with pytest.raises(DataError, match=message):
        read_phase_times(run)


def command(*words: object) -> Any:
    app = typer.Typer()
    app.command()(plan)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_shows_and_uses_the_factors(tmp_path: Path) -> None:
    run = write_run(tmp_path / "ran", 7)
    refused = command("demo", "--cluster", "this_machine", "--calibrate", run)
    assert isinstance(refused.exception, ConfigError)
    assert "2 rollout workers" in str(refused.exception)
    text = (run / "timeline.jsonl").read_text().replace("rollout 2", "rollout 1")
    (run / "timeline.jsonl").write_text(text)
    # A file of the run will do, since that is what people send.
    found = json.loads(command("demo", "--cluster", "this_machine", "--calibrate", run / "metrics.jsonl", "--json").stdout)
    plain = json.loads(command("demo", "--cluster", "this_machine", "--json").stdout)
    factors = {one["part"]: one["factor"] for one in found["calibration"]["parts"]}
    assert found["phases_s"]["backward"] == pytest.approx(plain["phases_s"]["backward"] * factors["learn"])
    assert plain["calibration"] is None
    shown = command("demo", "--cluster", "this_machine", "--calibrate", run)
    assert "calibrated by 5 steps" in shown.output
    assert "the run did no such work" in shown.output
    refused = command("demo", "--cluster", "this_machine", "--measured-on", "this_machine")
    assert isinstance(refused.exception, ConfigError)
