"""A part of your own is found by name: each row of CONTRIBUTING is followed once, with a template written to a folder and run.

Not covered: policies, which tests/policy/test_contract.py adds, and a package that is really installed; its entry point is set.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.suites import SUITE_GROUP
from paras2s.bench.suites.run import find_suite
from paras2s.cli.app import app
from paras2s.cli.own_benchmarks import GROUP as BENCHMARKS
from paras2s.configs.schema.curation import TTS_ENGINES, TTS_GROUP, SynthesisVoice
from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.configs.schema.judges import FILE_KINDS, JUDGE_GROUP
from paras2s.configs.schema.run import SOURCE_GROUP, SOURCE_KINDS, RewardConfig, RewardSourceConfig
from paras2s.data_gen.tts.base import Line, synthesise_all
from paras2s.data_gen.tts.engines import ENGINES, open_engine, unknown_option
from paras2s.errors import ConfigError
from paras2s.reward.blueprint.extract import ENTRY_POINT, build_blueprints, make_extractors
from paras2s.reward.judges.registry import BY_CLASS, open_judge, open_scoring_judge
from paras2s.reward.reward_model.teachers import JudgeTeacher, TeacherRequest
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import MAKERS, CompositeReward, RewardSetup

ROOT, MODULE = Path(__file__).resolve().parents[1], "parts_of_mine"
TEMPLATE = '''
import numpy as np
import typer

import paras2s
from paras2s.audio.clip import Clip
from paras2s.bench.suites.base import Suite
from paras2s.types import Measured


class Brevity(paras2s.Judge):
    name, version, scores_alone, needs_question_audio = "brevity", "1", True, False

    def __init__(self, best=5.0):
        self.best = best

    def score_batch(self, exchanges, on_progress=None):
        return [
            paras2s.Verdict(self.name, self.version, "", max(1.0, self.best - one.answer.duration_s), "", "", 0.0, 0.0)
            for one in exchanges
        ]


class OnlyPairs(paras2s.Judge):
    name, version = "pairs", "1"


class Words:
    """A reward source: the number of words of the text stream, up to 5."""

    kind, extractors, needs_sound, needs_codes = "words_said", (), False, False

    def __init__(self, most=5, words=None):
        self.most, self.words = most, words

    def score(self, groups):
        return [[float(min(self.most, 1 + len(one.text.split()))) for one in group.answers] for group in groups]


class Peak:
    """An extractor."""

    name, version, rate_hz, keys = "peak", "1", 16_000, ("peak.level",)

    def measure(self, clips):
        return [{"peak.level": Measured(float(np.abs(clip.samples).max()))} for clip in clips]


class Beeps:
    """A TTS engine."""

    version, spent_usd, options = "beeps/1", 0.0, {"hz"}

    def __init__(self, endpoint, cache):
        self.cache = cache

    def speak(self, lines, on_clip):
        for index, line in enumerate(lines):
            time = np.arange(8000) / 16_000
            on_clip(index, Clip(np.sin(2 * np.pi * line.voice.options["hz"] * time).astype(np.float32), 16_000))


class Nines(Suite):
    """A suite without items."""

    name, title, source, by_judge = "nines", "Nines", "nowhere", ("nine",)

    def items(self, data):
        return iter(())


def bench(system: str, times: int = typer.Option(1, help="Times.")) -> None:
    """Say a system's name."""
    typer.echo(" ".join([system] * times))
'''
OF_GROUP = {
    JUDGE_GROUP: "Brevity",
    SOURCE_GROUP: "Words",
    ENTRY_POINT: "Peak",
    TTS_GROUP: "Beeps",
    BENCHMARKS: "bench",
    SUITE_GROUP: "Nines",
}


@pytest.fixture(params=["module:Class", "entry point"])
def names(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The name of the template's part of each group."""
    (tmp_path / f"{MODULE}.py").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    where = {group: f"{MODULE}:{part}" for group, part in OF_GROUP.items()}
    if request.param == "module:Class":
        yield where
    else:
        offered = {group: [importlib.metadata.EntryPoint("mine", value, group)] for group, value in where.items()}
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: offered.get(group, []))
        yield dict.fromkeys(where, "mine")
    sys.modules.pop(MODULE, None)


def clip(duration_s: float) -> Clip:
    return Clip(np.full(int(16_000 * duration_s), 0.25, dtype=np.float32), 16_000)


def test_a_judge(names: dict[str, str], tmp_path: Path) -> None:
    name = names[JUDGE_GROUP]
    assert open_judge(name).score("Hello?", clip(1.0)).score == 4.0
    assert open_judge(name, {"options.best": 3.0}).score("Hello?", clip(1.0)).score == 2.0
    (tmp_path / "mine.yaml").write_text(f"kind: {name}\noptions: {{best: 4.5}}\n")
    assert open_judge(tmp_path / "mine.yaml").score("Hello?", clip(1.0)).score == 3.5
    with pytest.raises(ConfigError, match=r"options \{'worst': 1\} do not fit"):
        open_judge(name, {"options.worst": 1})
    for number, duration_s in enumerate((0.5, 1.5)):
        write_clip(tmp_path / f"{number}.wav", clip(duration_s))
    command = ["judge", "answer", "Hello?", str(tmp_path / "1.wav"), "--judge", name]
    assert "3.5" in CliRunner().invoke(app, command).output
    pair = ["judge", "pair", str(tmp_path / "0.wav"), str(tmp_path / "1.wav"), "--instruction", "Hello?", "--judge", name]
    assert '"label": "1"' in CliRunner().invoke(app, [*pair, "--json"]).output


def test_a_judge_that_is_shipped(names: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_CLASS, "brief", f"{MODULE}:Brevity")
    (tmp_path / "brief.yaml").write_text("kind: brief\noptions: {best: 4.5}\n")
    with pytest.raises(ConfigError, match="no kind of judge 'brief'"):
        open_judge(tmp_path / "brief.yaml")
    monkeypatch.setattr("paras2s.configs.schema.judges.FILE_KINDS", (*FILE_KINDS, "brief"))
    assert open_judge(tmp_path / "brief.yaml").score("Hello?", clip(1.0)).score == 3.5


def test_every_table_that_contributing_names_exists() -> None:
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = re.findall(r"`([A-Z_]+)` in `([\w/]+)\.py`", "\n".join(rows))
    assert len(named) >= 8
    for name, path in named:
        assert hasattr(importlib.import_module("paras2s." + path.replace("/", ".")), name), f"{name} in {path}"
    for path in re.findall(r"`(tests/[\w/]+\.py|tools/\w+\.py)`", "\n".join(rows)):
        assert (ROOT / path).is_file(), path


def test_a_judge_that_teaches_and_rewards(names: dict[str, str], tmp_path: Path) -> None:
    name = names[JUDGE_GROUP]
    teacher = JudgeTeacher(open_scoring_judge(name, "distill.teacher"), 0.3)
    requests = [TeacherRequest("Hello?", "sad", None, clip(length)) for length in (1.0, 2.0)]
    assert teacher.scores(requests, lambda done, total: None) == [{"sad": 4.0}, {"sad": 3.0}]
    assert (teacher.name, teacher.free, teacher.cost(requests).calls) == ("brevity/1/", False, 0)
    reward = composite(tmp_path, RewardSourceConfig(kind="llm", options={"judge": name}))
    assert [one.value for one in reward.score([group(clip(1.0), clip(2.0))])[0]] == [4.0, 3.0]
    assert reward.setup.needs_style
    with pytest.raises(ConfigError, match=r"distill.teacher: pairs compares answers"):
        open_scoring_judge(f"{MODULE}:OnlyPairs", "distill.teacher")
    with pytest.raises(ConfigError, match="nothing may learn from it"):
        open_scoring_judge("paras2s.reward.judges.independent.judge:IndependentJudge", "distill.teacher")


def composite(folder: Path, *sources: RewardSourceConfig) -> CompositeReward:
    return CompositeReward(RewardSetup(RewardConfig(sources=sources), folder / "reward", folder / "tone.json"))


def group(*clips: Clip) -> Group:
    answers = tuple(GivenAnswer(10, "one two", one) for one in clips)
    return Group(RewardQuestion("q", None, "hello", "sad"), answers)


def test_a_reward_source(names: dict[str, str], tmp_path: Path) -> None:
    kind = names[SOURCE_GROUP]
    reward = composite(tmp_path, RewardSourceConfig(kind=kind, name="words", options={"most": 2}))
    assert reward.score([group(clip(1.0))])[0][0].parts == {"words": 2.0}
    options = {"words": ["a", True, None, {"b": 1.5}]}
    assert composite(tmp_path, RewardSourceConfig(kind=kind, options=options)).sources[0].words == options["words"]
    with pytest.raises(ConfigError, match="is no reward source: it has no kind"):
        composite(tmp_path, RewardSourceConfig(kind="builtins:dict"))
    with pytest.raises(ConfigError, match="do not fit it"):
        composite(tmp_path, RewardSourceConfig(kind=kind, options={"least": 2}))


def test_an_extractor(names: dict[str, str]) -> None:
    (made,) = make_extractors([names[ENTRY_POINT]])
    assert build_blueprints([clip(1.0)], [made])[0].value("peak.level") == 0.25


def test_a_tts_engine(names: dict[str, str], tmp_path: Path) -> None:
    voice = SynthesisVoice(name="v", engine=names[TTS_GROUP], options={"hz": 200})
    tts = open_engine(voice.engine, tmp_path, EndpointConfig())
    (spoken,) = synthesise_all(tts, [Line("Hello", voice, "happy")], tmp_path)
    assert isinstance(spoken, Clip)
    assert unknown_option(voice.engine, {"hz": 1, "voice": "x"}) == "voice"


def test_a_benchmark(names: dict[str, str]) -> None:
    name = names[BENCHMARKS]
    assert CliRunner().invoke(app, ["bench", name, "cascade", "--times", "2"]).output == "cascade cascade\n"
    listed = CliRunner().invoke(app, ["bench", "--help"]).output
    assert "speakbench" in listed
    assert ("mine" in listed) is (name == "mine")


def test_a_suite(names: dict[str, str]) -> None:
    assert find_suite(names[SUITE_GROUP]).title == "Nines"


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    from paras2s.configs.schema.judges import find_judge

    with pytest.raises(
        ConfigError, match=r"no judge 'x'; there are audio, .*trace, .*rubric, independent, or give module:Class"
    ):
        find_judge("x")
    with pytest.raises(ValueError, match=r"no reward source 'x'; there are reward_model, .*overlong, or give module:Class"):
        RewardSourceConfig(kind="x")
    with pytest.raises(
        ValueError, match=r"no TTS engine 'x'; there are openai, cosyvoice, piper, espeak, or give module:Class"
    ):
        SynthesisVoice(name="v", engine="x")
    with pytest.raises(ConfigError, match=r"no extractor 'x'; there are words, .*tone, or give module:Class"):
        make_extractors(["x"])
    assert "no benchmark 'x'; there are speakbench" in str(CliRunner().invoke(app, ["bench", "x"]).exception)
    with pytest.raises(ConfigError, match=r"judge 'nowhere:Judge': cannot import nowhere:Judge"):
        open_judge("nowhere:Judge")


def test_the_names_of_the_schema_are_those_of_the_tables() -> None:
    assert set(SOURCE_KINDS) == set(MAKERS)
    assert list(TTS_ENGINES) == list(ENGINES)
