"""The public names: each can be had, importing them is cheap, and they do what docs/commands.md shows on a tiny policy.

Not covered: judges at endpoints and released models (tests/reward, tests/policy); the block of that page (test_docs.py).
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from outside import LIBRISPEECH
from studio.talking import make_talking_run

import paras2s
from paras2s.configs.schema.run import PolicyConfig
from paras2s.errors import AssetError, ConfigError, DataError
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Sampling

RECORDED = Path(__file__).parent / "recorded"


def speech() -> paras2s.Clip:
    return paras2s.read_clip(LIBRISPEECH / "librispeech_1263-139804-0001.flac")


class OneClip:
    """A dataset's clips, where there is one."""

    def clip(self, name: str) -> paras2s.Clip:
        return speech()

    def cached_features(self, name: str) -> None:
        return None


def test_every_public_name_can_be_had() -> None:
    assert sorted(paras2s.__all__) == list(paras2s.__all__)
    assert set(paras2s.__all__) == set(paras2s._MODULES)
    for name in paras2s.__all__:
        assert getattr(paras2s, name).__module__.startswith("paras2s.")
        assert getattr(paras2s, name).__doc__
    assert set(paras2s.__all__) <= set(dir(paras2s))


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'open_jugde'; its names are .*open_judge"):
        paras2s.open_jugde  # noqa: B018


def test_importing_loads_nothing_but_itself() -> None:
    """Counted in modules, since seconds depend on what else the machine does; the note has the seconds."""
    code = "import sys; before = set(sys.modules); import paras2s; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    loaded = eval(done.stdout)
    assert [name for name in loaded if name.startswith("paras2s")] == ["paras2s"]
    assert len(loaded) < 20


def test_a_clip_goes_out_and_comes_in(tmp_path: Path) -> None:
    clip = speech()
    paras2s.write_clip(tmp_path / "a.wav", clip)
    again = paras2s.read_clip(tmp_path / "a.wav")
    assert again.sample_rate_hz == clip.sample_rate_hz
    np.testing.assert_allclose(again.samples, clip.samples, atol=1e-4)


def test_a_blueprint_is_of_a_clip_or_its_file(tmp_path: Path) -> None:
    clip = speech()
    paras2s.write_clip(tmp_path / "a.wav", clip)
    measured = paras2s.blueprint(tmp_path / "a.wav", ["loudness"])
    assert measured.value("loudness_integrated_lufs") == pytest.approx(
        paras2s.blueprint(clip, ["loudness"]).value("loudness_integrated_lufs"), abs=0.01
    )
    with pytest.raises(ConfigError, match="no extractor 'colour'"):
        paras2s.blueprint(clip, ["colour"])


def test_a_reward_is_combined_from_the_sources_of_a_run() -> None:
    sources = paras2s.open_run("demo").config.reward.sources
    assert paras2s.combine({"reward_model": 4.0}, sources) == paras2s.Reward(4.0, {"reward_model": 4.0})
    unscored = paras2s.Unscored("reward_model", "silent")
    assert paras2s.combine({"reward_model": unscored}, sources) == unscored
    assert paras2s.group_advantages([[3.0, 1.0]], "none").values == (1.0, -1.0)


def test_a_policy_answers_and_its_seed_decides(tmp_path: Path) -> None:
    sizes = PolicyConfig(hidden_size=32, intermediate_size=48, num_layers=2, tap_layer=0, text_pieces=300)
    EmbeddedPolicy.create(sizes, OneClip(), ["a", "b"], seed=0).save(tmp_path / "policy")
    policy = paras2s.open_policy(tmp_path / "policy", device="cpu")
    sampling = Sampling(max_steps=6)
    first, again, other = (policy.answer(speech(), "abc", seed, sampling) for seed in (1, 1, 2))
    assert isinstance(first, paras2s.Answer)
    np.testing.assert_array_equal(first.clip.samples, again.clip.samples)
    assert first.text == again.text
    assert not np.array_equal(first.clip.samples, other.clip.samples)


def test_a_clip_and_an_answer_are_players_in_a_notebook(tmp_path: Path) -> None:
    clip = paras2s.Clip(np.full(800, 0.1, np.float32), 8_000)
    player = clip._repr_html_()
    assert player.startswith('<audio controls src="data:audio/wav;base64,UklGR')
    assert paras2s.Answer("<b>", clip)._repr_html_() == f"<p>&lt;b&gt;</p>{player}"
    assert "(no sound)" in paras2s.Answer("", paras2s.Clip(np.zeros(0, np.float32), 8_000))._repr_html_()


def test_tables_of_a_run_are_rows_and_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RECORDED / "run_0_21"
    for name in ("answers", "metrics", "queries", "rollouts"):
        rows = paras2s.read_table(run if name != "queries" else make_talking_run(tmp_path / "run"), name)
        assert len(rows) > 0, name
        if find_spec("pandas"):
            assert list(rows.to_pandas().columns) == list(rows[0])
    judges = {row["judge"].partition("/")[0] for row in paras2s.read_table(run, "answers")}
    assert judges == {"rubric", "independent"}
    with pytest.raises(ConfigError, match="table 'scores': there are answers, metrics, queries and rollouts"):
        paras2s.read_table(run, "scores")
    with pytest.raises(DataError, match="holds no answers; run `paras2s bench contrasts"):
        paras2s.read_table(tmp_path, "answers")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(AssetError, match="pip install pandas"):
        rows.to_pandas()


def test_a_policy_learns_from_a_reward_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paras2s.audio.asr.transcribe", lambda clips: [SimpleNamespace(text="abc") for _ in clips])
    sizes = PolicyConfig(hidden_size=32, intermediate_size=48, num_layers=2, tap_layer=0, text_pieces=300, max_answer_steps=6)
    EmbeddedPolicy.create(sizes, OneClip(), ["a", "b"], seed=0).save(tmp_path)

    def reward(number: int, answers: list[paras2s.Answer]) -> list[float | paras2s.Unscored]:
        assert number in (0, 1)
        return [1.0, 5.0, paras2s.Unscored("mine", "no idea")][: len(answers)]

    def train(**changed: Any) -> list[Any]:
        return list(paras2s.grpo_steps(tmp_path, [speech()] * 2, reward, **{"steps": 2, "group": 3, **changed}))

    first, last = train(settings={"max_unscored_share": 0.5, "optimizer.lr": 1e-2})
    assert [step.metrics["step"] for step in (first, last)] == [0, 1]
    assert (len(last.answers), len(last.answers[0]), last.metrics["unscored"]) == (2, 3, 2)
    assert last.rewards[0][:2] == [paras2s.Reward(1.0, {}), paras2s.Reward(5.0, {})]
    # The sampler has the learner's weights: both give the same tokens the same probability.
    assert last.metrics["parity_text_max"] < 1e-3
    assert last.metrics["kl"] > 0 == first.metrics["kl"]
    with pytest.raises(ConfigError, match="gave 3 scores to 4 answers"):
        train(group=4)
    with pytest.raises(ConfigError, match=r"optimizer\.lrr"):
        train(settings={"optimizer.lrr": 1})


def test_a_dataset_is_loaded_from_its_folder_or_its_runs(tmp_path: Path) -> None:
    run = make_talking_run(tmp_path)
    for folder in (str(run), run / "data"):
        # The tables are read; this run has no classifiers.
        with pytest.raises(DataError, match=r"data/tone_user\.json"):
            paras2s.load_dataset(folder)
    with pytest.raises(DataError, match=r"queries\.parquet: no such table"):
        paras2s.load_dataset(str(tmp_path / "none"))


def test_a_run_is_opened_by_preset_yaml_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.yaml").write_text(f"run_dir: {tmp_path / 'mine'}\nalign: {{steps: 7}}")
    run = paras2s.open_run(tmp_path / "my.yaml", quiet=True)
    assert not run.folder.exists()
    run.open()
    (tmp_path / "mine").rename(tmp_path / "moved")
    again = paras2s.open_run(tmp_path / "moved")
    assert (again.folder, again.config.align.steps) == (tmp_path / "moved", 7)
    assert paras2s.open_run("quick", {"align.steps": 2}, seed=3).config.run_dir == Path("runs/quick-seed3")
    (tmp_path / "moved").rename(tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    assert paras2s.open_run("demo").config.align.steps == 90  # the preset, not the folder of that name
    assert paras2s.open_run("./demo").config.align.steps == 7
    with pytest.raises(ConfigError, match="no preset 'nothing'"):
        paras2s.open_run("nothing")
