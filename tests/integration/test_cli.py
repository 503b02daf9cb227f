"""The command line as a program: quick help, one line and exit 2 for every mistake, JSON that is JSON, dry runs.

Not covered: the stages themselves; a run of the CI preset goes through them.
"""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml
from tiny.program import program

from paras2s.configs.schema.base import preset_path
from paras2s.configs.schema.run import load_config
from paras2s.errors import ConfigError
from paras2s.run import claim_folder

PROGRAM = Path(sys.executable).parent / "paras2s"
# Seconds of the processor that --help may take; other programs do not count.
HELP_S = 2.0
# An endpoint that needs no key, and is not there.
LOCAL = "llm.base_url=http://127.0.0.1:9/v1"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def process(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed program; the other tests run its `main`."""
    keyless = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.run([PROGRAM, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120, env=keyless)


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command that failed."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("paras2s: ")
    return done.stderr


def test_help_is_quick_and_names_every_verb(tmp_path: Path) -> None:
    took_s = []
    for _ in range(3):
        before_s = children_s()
        done = process("--help", cwd=tmp_path)
        took_s.append(children_s() - before_s)
        assert done.returncode == 0
    assert statistics.median(took_s) < HELP_S
    text = ANSI.sub("", done.stdout)
    verbs = ("demo", "data", "warmup", "distill", "align", "bench", "blueprint", "judge", "config", "doctor", "plan")
    verbs += ("rank", "probe", "ablate", "paper", "check-policy")
    assert [verb for verb in verbs if not re.search(rf"\b{verb}\b", text)] == []


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a clip, a text that calls itself one, and a clip of NaN."""
    folder = tmp_path_factory.mktemp("sounds")
    time_s = np.arange(12_000) / 16_000
    voiced = sum(np.sin(2 * np.pi * 180 * n * time_s) / n for n in range(1, 8)) * 0.1 * np.minimum(1, 8 * (0.75 - time_s))
    soundfile.write(folder / "good.wav", voiced, 16_000)
    (folder / "text.wav").write_text("These are words and no samples.\n" * 20)
    soundfile.write(folder / "nan.wav", np.full(8_000, np.nan, dtype=np.float32), 16_000, subtype="FLOAT")
    (folder / "unknown.yaml").write_text("align: {stpes: 3}\n")
    (folder / "broken.yaml").write_text("align: {steps: 3\nseed: 1\n")
    label = {"content": "1", "voice_quality": "1", "paralinguistics": "1", "overall": "tie"}
    pair = {"index": 0, "instruction_path": "i.wav", "instruction_text": "Hi", "model_a": "a", "model_b": "b"}
    pair |= {"audio1_path": "1.wav", "audio2_path": "2.wav", "label": label, "instruction_id": 1}
    (folder / "labels.json").write_text(json.dumps([pair]))
    (folder / "empty.json").write_text("[]")
    return folder


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["data", "nonsense"], "no preset 'nonsense'; there are demo, full, kimi_paper, quick"),
        (["demo", "--preset", "nonsense"], "no preset 'nonsense'"),
        (["config", "missing.yaml"], "missing.yaml: no such config"),
        (["config", "broken.yaml"], "broken.yaml: not valid YAML"),
        (["demo", "--dry-run", "--set", "align.stpes=3"], "align.stpes: unknown key"),
        (["demo", "--dry-run", "--set", "align.steps"], "--set align.steps: expected key=value"),
        (["demo", "--dry-run", "--set", "align.steps=[1"], "--set align.steps=[1"),
        (["blueprint", "none.wav", "--extractors", "ending"], "none.wav: no such file"),
        (["blueprint", "text.wav", "--extractors", "ending"], "text.wav: cannot be decoded as audio"),
        (["blueprint", "nan.wav"], "nan.wav: holds NaN"),
        (["blueprint", "good.wav", "--extractors", "ending,colour"], "no extractor 'colour'"),
        (["blueprint", "good.wav", "--extractors", "tone"], "extractor 'tone' needs a fitted tone classifier"),
        (
            ["judge", "answer", "Hi", "good.wav", "--judge", "rubric", "--style", "happy", "--tone", "none.json"],
            "none.json: no such file",
        ),
        (["judge", "answer", "Hi", "good.wav", "--judge", "rubric", "--style", "happy"], "--tone: the rubric needs"),
        (["judge", "answer", "Hi", "good.wav", "--judge", "rubric"], "--style: the rubric judge needs to know"),
        (["judge", "answer", "Hi", "good.wav", "--judge", "independent"], "--style: the independent judge needs to know"),
        (
            ["judge", "pair", "good.wav", "good.wav", "--question", "Hi", "--judge", "trace"],
            "set OPENAI_API_KEY in the environment",
        ),
        (["judge", "pair", "good.wav", "good.wav", "--question", "no.wav", "-s", LOCAL], "no.wav: no such file"),
        (
            ["judge", "pair", "good.wav", "good.wav", "--question", "Hi", "--judge", "best"],
            "no judge 'best'; there are audio",
        ),
        (["judge", "pair", "good.wav", "text.wav", "--question", "Hi", "-s", LOCAL], "text.wav: cannot be decoded"),
        (["bench", "speakbench", "--labels", "none.json", "--oracle"], "none.json: no such file"),
        (
            ["bench", "speakbench", "--labels", "labels.json", "--oracle"],
            "labels.json: entry 0: label.overall: Input should be '1'",
        ),
        (["bench", "s2sarena", "--labels", "empty.json", "--oracle"], "empty.json: expected a list of pairs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_that_names_it(sounds: Path, words: list[str], named: str) -> None:
    assert named in complaint(program(*words, cwd=sounds))


def test_a_mistake_of_the_program_is_one_line(sounds: Path) -> None:
    assert "unknown.yaml: align.stpes: unknown key" in complaint(process("data", "unknown.yaml", cwd=sounds))


def test_a_blueprint_is_json(sounds: Path) -> None:
    done = program("blueprint", "good.wav", "--extractors", "pitch,loudness,ending", cwd=sounds)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    fields = json.loads(done.stdout)["good.wav"]["fields"]
    pitch = fields["agent_audio_properties.pitch_mean_hz"]
    assert (pitch["type"], pitch["unit"]) == ("Measured", "Hz")
    assert pitch["value"] == pytest.approx(180, rel=0.03)
    assert fields["agent_audio_properties.tail_level_db"]["value"] < -5


def test_doctor_is_json_and_exits_by_what_it_found(tmp_path: Path) -> None:
    done = program("doctor", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if all(part["ok"] or not part["needed"] for part in found["parts"]) else 1)
    assert {"torch", "ray", "whisper_tiny", "disk"} <= {part["part"] for part in found["parts"]}
    assert all(part["switches_off"] for part in found["parts"])
    assert found["machine"]["cores"] >= 1


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tmp_path: Path) -> None:
    done = program("demo", "--preset", "quick", "--dry-run", "--seed", "3", "--set", "align.steps=11", cwd=tmp_path)
    sampling = load_config(preset_path("quick")).align.sampling
    answers = 11 * sampling.queries_per_step * sampling.group_size
    assert done.returncode == 0, done.stderr
    announced, _, settings = done.stdout.partition("\nname:")
    config = yaml.safe_load(f"name:{settings}")
    assert f"GRPO over 11 steps ({answers} answers)" in announced
    assert (config["name"], config["seed"], config["run_dir"]) == ("quick", 3, "runs/quick-seed3")
    assert config["align"]["steps"] == 11
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_before_a_setting_goes_on_with_its_default(tmp_path: Path) -> None:
    config = load_config(preset_path("quick"))
    claim_folder(tmp_path, config)
    resolved = tmp_path / "config.resolved.yaml"
    resolved.write_text(resolved.read_text().replace("  take_up_topics: false\n", ""))
    claim_folder(tmp_path, config)
    assert "take_up_topics: false" in resolved.read_text()
    resolved.write_text(resolved.read_text().replace("  take_up_topics: false\n", ""))
    with pytest.raises(ConfigError, match=r"other settings \(data.take_up_topics: False\)"):
        claim_folder(tmp_path, load_config(preset_path("quick"), {"data.take_up_topics": True}))


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.resolved.yaml").write_text("name: other\n")
    done = program("data", "quick", "--run-dir", "mine", cwd=tmp_path)
    assert "mine/config.resolved.yaml: this folder holds a run with other settings" in complaint(done)
