"""Files of preferences: what a wrong row says, and a run's answers written, read by TRL, and learned from.

Not covered: the losses (tests/train/test_preference.py), a run under Ray (test_drivers.py), and TRL's training.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny.qwen_omni import tiny_qwen_omni, tiny_qwen_omni_turns
from tiny.settings import align_config
from tiny.studies import tone
from tiny.world import invoke

from paras2s.align.recorded import RecordedPreferences
from paras2s.audio.clip import Clip, read_clip
from paras2s.configs.schema.align import PreferencesConfig
from paras2s.configs.schema.run import PolicyConfig
from paras2s.data_gen.dataset import load_manifest, save_tables
from paras2s.data_gen.preference_file import FILE, labelled_row, pair_row, read_preferences
from paras2s.errors import ConfigError, DataError, PolicyError
from paras2s.pipeline.train_preferences import count_preferences, open_preferences
from paras2s.pipeline.write_preferences import PreferenceRule, write_preferences
from paras2s.policy.base import Policy
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import SampleRequest, Sampling
from paras2s.rollout.demonstrations import RecordedClips, encode_targets_into, read_target, tokens_file, write_target
from paras2s.rollout.engine import decoded
from paras2s.rollout.prompts import encode_into
from paras2s.rollout.store import write_step
from paras2s.train.preference import PreferenceLearner
from paras2s.types import Demonstration, PastTurn, Query, Reward, Unscored

ANSWER_STEPS = 5
# A run's folder and its policy.
KeptRun = tuple[Path, EmbeddedPolicy]


# -- rows -------------------------------------------------------------------------------------------------------------


def good_pair(folder: Path) -> dict[str, Any]:
    names = [tone(folder / f"{name}.wav", hz) for name, hz in (("q", 200), ("a", 300), ("b", 400))]
    return pair_row("1", names[0], "hello", (names[1], "yes"), (names[2], "no"))


def good_label(folder: Path, good: bool = True) -> dict[str, Any]:
    return labelled_row("1", tone(folder / "q.wav", 200), "hello", (tone(folder / "a.wav", 300), "yes"), good)


def written(folder: Path, *rows: Any) -> Path:
    (folder / FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / FILE


USER, ASSISTANT = ({"role": role, "content": "<audio>"} for role in ("user", "assistant"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rejected_audio": "a.wav"}, "rejected_audio: a.wav is the same sound as the chosen answer's"),
        ({"rejected_audio": None}, "rejected_audio: is missing: the row has no rejected answer"),
        ({"sft_target_audio": None}, "sft_target_audio: is missing"),
        ({"rejected_audio": "gone.wav"}, "rejected_audio: gone.wav: no such file in"),
        ({"audios": ["gone.wav"]}, "audios: gone.wav: no such file in"),
        ({"audios": []}, "audios: 0 clips, and messages have 1 places; give the question's"),
        ({"messages": [USER, ASSISTANT]}, "messages: the last turn is the assistant's"),
        ({"messages": [{"role": "system", "content": "Hi."}, USER]}, "messages: a turn of role 'system'"),
        ({"messages": [USER, ASSISTANT, USER]}, "audios: 1 clips, and messages have 3 places"),
        ({"messages": [{"role": "user", "content": " "}, USER]}, "messages.0: has neither words nor <audio>"),
        ({"messages": [USER, USER], "audios": ["gone.wav", "q.wav"]}, "audios: gone.wav: no such file in"),
        ({"messages": [{"role": "user", "content": "<audio> Why?"}]}, r"messages: has words beside the clip \('Why\?'\)"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"label": True}, "answer_audio: is missing"),
        ({"rejected_text": 3}, "rejected_text: Input should be a valid string"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_row_is_named_with_its_file(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    row = good_pair(tmp_path)
    path = written(tmp_path, row, row | change)
    with pytest.raises(DataError, match=f"{FILE}:2: {said}") as refused:
        read_preferences(path)
    assert "\n" not in str(refused.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{FILE}: holds no rows"):
        read_preferences(written(tmp_path))


def test_rows_of_wavalign_are_read(tmp_path: Path) -> None:
    """Its tag of a clip, words beside it that are the question's, and keys that are its own."""
    row = good_pair(tmp_path) | {
        "messages": [{"role": "user", "content": "hello\n\n<|audio|>"}], "sft_target_text": None, "score_gap": 2.0,
    }  # fmt: skip
    (found,) = read_preferences(written(tmp_path, row))
    assert (found.question, found.words, found.line) == ("q.wav", "hello", 1)
    assert [(one.clip, one.text, one.good) for one in found.answers] == [("a.wav", None, True), ("b.wav", "no", False)]


def test_turns_before_the_question_are_its_history(tmp_path: Path) -> None:
    tone(tmp_path / "u.wav", 500)
    said = (PastTurn("user", "How was it?", "u.wav"), PastTurn("assistant", "Fine."), PastTurn("user", "", "u.wav"))
    row = pair_row("1", tone(tmp_path / "q.wav", 200), "hello", (tone(tmp_path / "a.wav", 300), "yes"),
                   (tone(tmp_path / "b.wav", 400), "no"), said)  # fmt: skip
    contents = ["<audio>How was it?", "Fine.", "<audio>", "<audio>"]
    roles = ["user", "assistant", "user", "user"]
    assert row["messages"] == [{"role": role, "content": said} for role, said in zip(roles, contents, strict=True)]
    assert row["audios"] == ["u.wav", "u.wav", "q.wav"]
    assert [turn["content"] for turn in row["prompt"]] == ["How was it?", "Fine.", "", "hello"]
    alone, found = read_preferences(written(tmp_path, good_pair(tmp_path), row))
    assert (alone.history, found.history) == ((), said)
    assert (alone.question, found.question, found.words) == ("q.wav", "q.wav", "hello")
    assert found.clips == ("q.wav", "a.wav", "b.wav", "u.wav", "u.wav")


def config_of(path: Path, **values: Any) -> Any:
    loss = values.pop("loss", None)
    return align_config(preferences=PreferencesConfig(file=path, loss=loss), **{"queries_per_step": 2, "steps": 3, **values})


@pytest.mark.parametrize(
    ("rows", "settings", "kind", "said"),
    [
        ("pl", {"loss": "dpo"}, DataError, f"{FILE}:2: an answer with a label, and DPO learns from pairs"),
        ("ll", {}, DataError, f"{FILE}: every answer is good; KTO learns from good and bad answers"),
        ("p", {"micro_batch_size": 1}, ConfigError, "micro_batch_size: 1, and both answers of a pair"),
        ("pl", {"queries_per_step": 1}, ConfigError, "queries_per_step: 1, and KTO compares"),
    ],
    ids=["labels for dpo", "one label", "pairs one by one", "one answer a step"],
)
def test_rows_and_settings_that_do_not_fit(rows: str, settings: Any, kind: Any, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, *(good_pair(tmp_path) if row == "p" else good_label(tmp_path) for row in rows))
    with pytest.raises(kind, match=said):
        count_preferences(config_of(path, **settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"resample": {}}, "nothing can be sampled again"), ({"anchor": {"adaptive": {}}}, "an adaptive anchor reads rewards")],
    ids=["resampling", "adaptive anchor"],
)
def test_settings_that_need_sampled_answers_are_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        config_of(tmp_path / FILE, **settings)


def test_a_dry_run_counts(tmp_path: Path) -> None:
    """Clips of 0.2 s. Pairs are two answers for KTO."""
    path = written(tmp_path, good_pair(tmp_path), good_pair(tmp_path) | {"rejected_text": None})
    count = count_preferences(config_of(path))
    assert (count.method, count.rows, count.steps, count.rows_per_step, count.epochs) == ("DPO", 2, 3, 2, 3.0)
    assert (count.question_s, count.answer_s, count.words_missing) == (pytest.approx(0.4), pytest.approx(0.8), 1)
    config = tmp_path / "run.yaml"
    config.write_text(
        f"run_dir: {tmp_path / 'run'}\nalign: {{steps: 4, preferences: null, sampling: {{queries_per_step: 3}}}}\n"
    )
    printed = invoke("align", config, "--preferences", path, "--dry-run", "--json", "-s", "align.preferences.loss=kto").stdout
    found = json.loads(printed)
    assert (found["method"], found["rows"], found["good"], found["bad"], found["epochs"]) == ("KTO", 4, 2, 2, 3.0)
    assert not (tmp_path / "run").exists()


def test_a_clip_that_is_no_sound_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, good_pair(tmp_path))
    (tmp_path / "b.wav").write_text("no sound")
    with pytest.raises(DataError, match=rf"{FILE}:1: .*b.wav: cannot be decoded as audio"):
        count_preferences(config_of(path))


# -- from rollouts to updates -----------------------------------------------------------------------------------------


class Workers:
    """In place of Ray's workers: what they do, in this process."""

    def __init__(self, policy: Policy, lowest_hz: int = 8_000) -> None:
        self.policy, self.lowest_hz = policy, lowest_hz

    def answer_rate_hz(self) -> int:
        return self.lowest_hz

    def encode(self, folder: Path, clips: Any, queries: Sequence[Query], done: Callable[[int, int], None]) -> list[str]:
        return encode_into(folder, self.policy, "tiny", clips, queries)[0]

    def encode_targets(self, folder: Path, clips: Any, rows: Sequence[Demonstration], done: Any) -> list[str]:
        return encode_targets_into(folder, self.policy, "tiny", clips, rows)[0]


class Questions:
    """The questions of a run in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clip(self, name: str) -> Clip:
        return read_clip(self.folder / name)

    def cached_features(self, name: str) -> bytes | None:
        return None


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> KeptRun:
    """A run that kept two steps of a tiny policy's answers: two questions, three answers each; the last one is unscored."""
    folder = tmp_path_factory.mktemp("run")
    names = [tone(folder / "data" / f"q{number}.wav", 200 + 90 * number, 0.4) for number in range(2)]
    queries = [
        Query(f"q{n}", f"c{n}", "emotion", None, "rl", "someone", name, 0.4, f"how {n}", None, None)
        for n, name in enumerate(names)
    ]  # fmt: skip
    save_tables(folder / "data", queries, [], [])
    sizes = PolicyConfig(hidden_size=32, intermediate_size=48, num_layers=2, tap_layer=0, text_pieces=300)
    policy = EmbeddedPolicy.create(sizes, Questions(folder / "data"), names, seed=0)
    prompts = policy.encode_queries(Questions(folder / "data"), queries)
    for step in range(2):
        request = SampleRequest(prompts, [[100 * step + 10 * n + g for g in range(3)] for n in range(2)], Sampling())
        request = replace(request, sampling=Sampling(max_steps=ANSWER_STEPS))
        generations = policy.generate(request)
        rollouts = [decoded(policy, query.id, step, made) for query, made in zip(queries, generations, strict=True)]
        rewards = [[Reward(2.0, {"a": 3.0}), Reward(4.0, {"a": 1.0}), Unscored("a", "silent")] for _ in rollouts]
        write_step(folder / "rollouts", step, rollouts, rewards, [[1.0, -1.0, None]] * 2)
    return folder, policy


def opened(path: Path, folder: Path, resume: bool = False, **values: Any) -> RecordedPreferences:
    config = SimpleNamespace(align=config_of(path, **values))
    run: Any = SimpleNamespace(config=config, folder=folder, say=print)
    found = open_preferences(run, lambda prompt, _: prompt, resume)
    assert found is not None
    return found


def test_a_policy_learns_from_the_tokens_that_it_sampled(run_folder: KeptRun, tmp_path: Path) -> None:
    folder, policy = run_folder
    out = tmp_path / "out"
    summary = write_preferences(folder, out, PreferenceRule())
    assert (summary.rows, summary.groups_without) == (4, 0)
    preferences = opened(summary.path, tmp_path / "mine")
    workers: Any = Workers(policy)
    preferences.encode(workers, lambda *_: None)
    batch = preferences.batch(0, 4, seed=0)
    assert (preferences.method, batch.good) == ("DPO", (True, False) * 4)
    kept = json.loads(summary.path.read_text().splitlines()[0])
    assert (kept["chosen_score"], kept["rejected_score"], kept["question_text"]) == (4.0, 2.0, "how 0")
    sides = [(kept[f"{side}_audio"], kept[f"{side}_text"]) for side in ("sft_target", "rejected")]
    for row, (clip, text) in enumerate(sides):
        example = preferences.answers[row]
        assert policy.decode_text(example.target, 0) == text
        # Sound that is encoded again gives other codes: these are those of the rollout.
        sound = policy.decode_audio(example.target, 0, 0).samples
        np.testing.assert_allclose(read_clip(out / clip).samples, sound, atol=1e-4)
    settings = PreferencesConfig(file=summary.path, beta=0.3)
    learner = PreferenceLearner(policy, align_config(lr=0.003, warmup_steps=1, preferences=settings), ANSWER_STEPS)
    log = [learner.learn(batch) for _ in range(4)]
    assert log[0]["loss"] == pytest.approx(np.log(2.0), abs=1e-5)
    assert log[-1]["loss"] < log[0]["loss"] - 0.05


def test_the_turns_before_a_question_go_along(run_folder: KeptRun, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folder[0], folder)
    queries = list(load_manifest(folder / "data").queries)
    tone(folder / "data/u.wav", 500)
    queries[0] = replace(queries[0], history=(PastTurn("user", "hi", "u.wav"), PastTurn("assistant", "yes")))
    save_tables(folder / "data", queries, [], [])
    written_to = write_preferences(folder, tmp_path / "out", PreferenceRule(), step=0).path
    behind, alone = read_preferences(written_to)
    user, assistant = behind.history
    assert (user.text, assistant, alone.history) == ("hi", PastTurn("assistant", "yes"), ())
    assert (written_to.parent / str(user.clip)).read_bytes() == (folder / "data/u.wav").read_bytes()
    preferences = opened(written_to, tmp_path / "mine")
    assert [query.history for query in preferences.answers.queries] == [behind.history, ()]


def test_another_source_may_decide_and_a_margin_leaves_pairs_out(run_folder: KeptRun, tmp_path: Path) -> None:
    folder = run_folder[0]
    first = read_preferences(write_preferences(folder, tmp_path / "whole", PreferenceRule(), step=1).path)
    by = read_preferences(write_preferences(folder, tmp_path / "by", PreferenceRule(by="a", margin=2.0), step=1).path)
    assert len(first) == len(by) == 2
    assert [row.answers[0].clip for row in first] == [row.answers[1].clip for row in by]
    for choice, said in (
        (PreferenceRule(margin=2.5), "answers that are 2.5 apart; lower"),
        (PreferenceRule(by="b"), "by b; the sources are a"),
    ):
        with pytest.raises(ConfigError, match=said):
            write_preferences(folder, tmp_path / "none", choice)
    with pytest.raises(ConfigError, match="is there already"):
        write_preferences(folder, tmp_path / "by", PreferenceRule())


def test_labels_are_learned_from_by_kto(run_folder: KeptRun, tmp_path: Path) -> None:
    folder, policy = run_folder
    printed = invoke("rollouts", folder, "--preferences", tmp_path / "out", "--labels", "--json").stdout
    assert json.loads(printed)["rows"] == 8
    preferences = opened(tmp_path / "out" / FILE, tmp_path / "mine", queries_per_step=8)
    preferences.encode(Workers(policy), lambda *_: None)  # type: ignore[arg-type]
    assert preferences.method == "KTO"
    batch = preferences.batch(0, 8, seed=0)
    assert sorted(batch.good) == [False] * 4 + [True] * 4
    # Each row once an epoch, in an order of its own.
    assert batch.good != preferences.batch(1, 8, seed=0).good
    assert batch.good == preferences.batch(0, 8, seed=0).good


def test_answers_of_another_policys_rate_are_refused(run_folder: KeptRun, tmp_path: Path) -> None:
    path = write_preferences(run_folder[0], tmp_path / "out", PreferenceRule(), step=0).path
    preferences = opened(path, tmp_path / "mine")
    with pytest.raises(DataError, match=rf"{FILE}:1: an answer is at 8000 Hz, below the 24000 Hz of this policy's speech"):
        preferences.encode(Workers(run_folder[1], 24_000), lambda *_: None)  # type: ignore[arg-type]


def test_a_resumed_run_refuses_another_file(tmp_path: Path) -> None:
    path = written(tmp_path, good_pair(tmp_path))
    opened(path, tmp_path / "mine")
    opened(path, tmp_path / "mine", resume=True)
    written(tmp_path, good_pair(tmp_path), good_pair(tmp_path))
    with pytest.raises(ConfigError, match="has changed since this run began"):
        opened(path, tmp_path / "mine", resume=True)
    opened(path, tmp_path / "mine")


def test_a_talker_without_an_encoder_learns_from_its_own_tokens(tmp_path: Path) -> None:
    """Of two blocks, words and then speech; another model's tokens, or none, would have to be encoded."""
    policy = tiny_qwen_omni()
    prompt = policy.encode_prompt(tiny_qwen_omni_turns()[0])
    (made,) = policy.generate(SampleRequest([prompt], [[3]], Sampling(max_steps=6)))
    text, clip = policy.decode_text(made.blocks, 0), tone(tmp_path / "a.wav", 300)
    clips, row = RecordedClips(tmp_path), Demonstration("q", text, "", clip)
    with pytest.raises(PolicyError, match="never released"):
        encode_targets_into(tmp_path / "made", policy, "tiny", clips, [row])
    write_target(tokens_file(tmp_path / clip), made.blocks, code_format=policy.spec.code_format)
    (name,), encoded = encode_targets_into(tmp_path / "made", policy, "tiny", clips, [row])
    assert encoded == 1
    for one, other in zip(read_target(tmp_path / "made" / name), made.blocks, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.sampled, other.sampled)
    with pytest.raises(PolicyError, match="never released"):
        encode_targets_into(tmp_path / "made", policy, "tiny", clips, [replace(row, text=f"{text}!")])


# -- other trainers ---------------------------------------------------------------------------------------------------


def test_trl_reads_both_forms(run_folder: KeptRun, tmp_path: Path) -> None:
    """By its trainers' own preparation, with a tokenizer of letters."""
    pytest.importorskip("trl", reason="the format is that of trl==1.16.0")
    from datasets import load_dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.kto_trainer import KTOTrainer

    letters = Tokenizer(models.WordLevel({chr(n): n for n in range(256)}, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="~", unk_token="?")
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}~{% endfor %}"
    trainer = SimpleNamespace(_tokenizer=tokenizer, calculate_KL=False, desirable_weight=1.0, undesirable_weight=1.0)
    args: Any = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_end")
    for labels, kind, key in ((False, DPOTrainer, "chosen"), (True, KTOTrainer, "completion")):
        path = write_preferences(run_folder[0], tmp_path / key, PreferenceRule(labels=labels)).path
        rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        found = kind._prepare_dataset(trainer, rows, tokenizer, args, "train")
        assert len(found) == len(rows)
        first = json.loads(path.read_text().splitlines()[0])
        said = first["sft_target_text"] if key == "chosen" else first["answer_text"]
        assert tokenizer.decode(found[0][f"{key}_ids"]).replace(" ", "").endswith(f"{said}~".replace(" ", ""))
