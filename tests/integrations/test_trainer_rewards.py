"""Our judges as rewards of TRL, verl and ms-swift: called as those trainers call, and TRL's own trainer is run.

Not covered: verl and ms-swift themselves, which are not installed; their calls are those of verl's `NaiveRewardManager` and of
ms-swift's `compute_rewards_per_func`, in 2026.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.endpoint import Fail, ScriptedEndpoint
from tiny.served import Words, serving

from paras2s.audio.clip import Clip, encode_exactly, write_clip
from paras2s.errors import ConfigError, EndpointError, JudgeError
from paras2s.integrations import verl
from paras2s.integrations.rewards import JudgeReward, clip_of, text_of
from paras2s.integrations.swift import judge_orm
from paras2s.integrations.trl import judge_reward
from paras2s.reward.sources.base import Group
from paras2s.types import Unscored

WORDS = "tiny.served:Words"
TUTORIAL = Path(__file__).parents[2] / "docs/tutorials/judges-in-other-trainers.md"


def block_of(name: str) -> dict[str, Any]:
    """The names that a file of the tutorial defines."""
    found = re.search(rf"^```python\n(# {re.escape(name)}\n.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(compile(found[1], name, "exec"), names)
    return names


def test_rows_become_groups_and_scores_keep_their_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Group] = []
    reward = JudgeReward(WORDS)
    scores_of = reward.scores
    monkeypatch.setattr(reward, "scores", lambda groups: (seen.extend(groups), scores_of(groups))[1])
    write_clip(tmp_path / "q.wav", clip := Clip(np.full(1600, 0.1, dtype=np.float32), 16_000))
    columns = {
        "style": ["sad", "sad", "sad", "happy"],
        "question_audio": [str(tmp_path / "q.wav")] * 3 + [None],
        "answer_audio": [None, None, "missing.wav", None],
        "solution": [1, 2, 3, 4],
    }
    scores = reward.of_rows(["a b", "a", "lost", "a b c"], ["Hi?", "Hi?", "Hi?", [{"role": "user", "content": "Hi?"}]], columns)
    assert [(group.question.transcript, group.question.style, len(group.answers)) for group in seen] == [
        ("Hi?", "sad", 2), ("Hi?", "happy", 1),
    ]  # fmt: skip
    assert isinstance(seen[0].question.clip, Clip)
    assert len(seen[0].question.clip.samples) == len(clip.samples)
    assert [scores[0], scores[1], scores[3]] == [2.0, 1.0, 3.0]
    assert isinstance(scores[2], Unscored)
    assert "missing.wav" in scores[2].reason


def test_texts_and_clips_come_in_each_trainers_forms(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "so "}, {"type": "text", "text": "sad"}, {"type": "audio"}]
    forms = [
        "so sad",
        [{"role": "system", "content": "x"}, {"role": "assistant", "content": "so sad"}],
        [{"role": "user", "content": parts}],
    ]
    assert [text_of(form) for form in forms] == ["so sad"] * 3
    assert (text_of([]), text_of(None)) == ("", "")
    clip = Clip(np.linspace(-0.5, 0.5, 1600, dtype=np.float32), 16_000)
    (tmp_path / "a.wav").write_bytes(encode_exactly(clip))
    audio = {"array": clip.samples.tolist(), "sampling_rate": 16_000}
    values = [
        clip,
        str(tmp_path / "a.wav"),
        encode_exactly(clip),
        audio,
        {"bytes": None, "path": str(tmp_path / "a.wav")},
        (clip.samples, 16_000),
    ]
    assert {clip_of(value).digest for value in values} == {clip.digest}  # type: ignore[union-attr]
    assert clip_of(None) is None
    with pytest.raises(ValueError, match=r"datasets.Audio or \(samples, rate\), and not int"):
        clip_of(3)


def test_messages_before_the_question_are_its_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_clip(tmp_path / "u.wav", Clip(np.full(1600, 0.1, dtype=np.float32), 16_000))
    spoken = [{"type": "audio", "audio": str(tmp_path / "u.wav")}, {"type": "text", "text": "I lost my job."}]
    start = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": spoken}]
    prompt = [*start, {"role": "assistant", "content": "I am sorry."}, {"role": "user", "content": "What now?"}]

    def histories(scope: str, prompts: list[Any], **columns: Any) -> list[list[Any]]:
        seen: list[Group] = []
        reward = JudgeReward(WORDS, scope=scope)  # type: ignore[arg-type]
        scores_of = reward.scores
        monkeypatch.setattr(reward, "scores", lambda groups: (seen.extend(groups), scores_of(groups))[1])
        reward.of_rows(["a b"] * len(prompts), prompts, columns)
        return [
            [(turn.speaker, turn.text, turn.clip is not None) for turn in group.question.history]
            for group in seen
            for _ in group.answers
        ]

    said = [("user", "I lost my job.", True), ("assistant", "I am sorry.", False)]
    assert histories("dialogue", [prompt, prompt, "What now?"]) == [said, said, []]
    assert histories("last", [prompt, prompt]) == [[], []]
    assert histories("dialogue", ["What now?"], history=[prompt[1:3]]) == [said]
    # Parts of one message are no turns, and a tool is no speaker.
    assert histories("dialogue", [[{"type": "audio"}, {"type": "text", "text": "What now?"}]]) == [[]]
    assert histories("dialogue", [[*prompt[:3], {"role": "tool", "content": "42"}, prompt[3]]]) == [said]
    with pytest.raises(ValueError, match=r"a message with role and content, and not 'I lost my job\.'"):
        histories("dialogue", ["What now?"], history=[["I lost my job."]])
    with pytest.raises(ConfigError, match="scope: 'all'"):
        histories("all", [prompt])
    # A judge of one question says so, unless it is told to judge the last turn alone.
    completions = ["a b"]
    assert judge_reward(WORDS)(prompts=[prompt], completions=completions) == [None]
    assert judge_reward(WORDS, scope="last")(prompts=[prompt], completions=completions) == [2.0]
    # ms-swift's messages end with the completion.
    messages = [[*prompt, {"role": "assistant", "content": "a b"}]]
    assert judge_orm(WORDS, unscored=0.5)()(completions, messages=messages) == [0.5]
    assert judge_orm(WORDS, scope="last")()(completions, messages=messages) == [2.0]
    extra = {"question": "What now?", "history": prompt[:3]}
    assert verl.compute_score("x", "a b", "", extra, judge=WORDS, unscored=0.5) == 0.5
    assert verl.compute_score("x", "a b", "", extra, judge=WORDS, scope="last") == 2.0


def test_questions_that_sound_different_are_two_groups() -> None:
    # Long arrays print alike.
    sounds = [np.zeros(4000, dtype=np.float32) for _ in range(2)]
    sounds[1][2000] = 0.5
    seen: list[Group] = []
    reward = JudgeReward(WORDS)
    reward.scores = lambda groups: (seen.extend(groups), [[1.0]] * len(groups))[1]  # type: ignore[assignment,func-returns-value,misc]
    columns = {"question_audio": [{"array": sound, "sampling_rate": 16_000} for sound in sounds]}
    reward.of_rows(["a", "a"], ["Hi?", "Hi?"], columns)
    assert len(seen) == 2


def test_trl_gets_a_number_or_none_served_and_in_the_process() -> None:
    prompts = ["Hi?"] * 3
    completions = [[{"role": "assistant", "content": words}] for words in ("a b", "mumble", "a")]
    shares: list[tuple[str, float]] = []
    given: dict[str, Any] = {
        "completion_ids": [[1]] * 3,
        "trainer_state": None,
        "log_metric": lambda *call: shares.append(call),
    }
    with serving(Words()) as url:
        for judge in (url, WORDS):
            assert judge_reward(judge)(prompts=prompts, completions=completions, **given) == [2.0, None, 1.0]
    assert shares == [("unscored", 1 / 3)] * 2
    assert judge_reward(WORDS, **{"options.best": 1.0})(prompts=prompts, completions=completions) == [1.0, None, 1.0]
    with pytest.raises(ConfigError, match="judg"):
        judge_reward("http://127.0.0.1:1", judg=1)


def test_verl_gets_a_number_and_a_missing_one_stops_the_run() -> None:
    # As `NaiveRewardManager.run_single` calls it.
    call = {"data_source": "x", "ground_truth": "", "extra_info": {"question": "Hi?", "style": "sad", "num_turns": None}}
    router = {"reward_router_address": "127.0.0.1:9", "reward_model_tokenizer": None}
    with serving(Words()) as url:
        assert verl.compute_score(solution_str="a b", judge=url, **call, **router) == 2.0
        with pytest.raises(JudgeError, match=r"no score \(the server: no word can be made out\).*give unscored=NUMBER"):
            verl.compute_score(solution_str="mumble", judge=url, **call)
        assert verl.compute_score(solution_str="mumble", judge=url, unscored=1.5, **call) == 1.5
        rows: dict[str, Any] = {"data_sources": ["x"] * 2, "ground_truths": [""] * 2, "extra_infos": [{}, None]}
        assert verl.compute_scores(solution_strs=["a", "a b"], judge=url, **rows) == [1.0, 2.0]
    # The names that verl documents.
    assert list(inspect.signature(verl.compute_score).parameters)[:4] == [
        "data_source",
        "solution_str",
        "ground_truth",
        "extra_info",
    ]


def test_swift_gets_a_number_and_a_missing_one_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [[{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": words}] for words in ("a b", "a")]
    columns = {"trainer_state": None, "messages": messages, "style": ["sad", "sad"], "prompt_id": ["1", "1"]}
    rewards = types.ModuleType("swift.rewards")
    rewards.orms = {}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "swift", types.ModuleType("swift"))
    monkeypatch.setitem(sys.modules, "swift.rewards", rewards)
    with serving(Words()) as url:
        # The tutorial's plug-in; then as `_prepare_rewards` makes it, and `compute_rewards_per_func` calls it.
        block_of("plugin.py")["register"](url)
        reward = rewards.orms["paras2s"](args=None)  # type: ignore[attr-defined]
        assert reward(["a b", "a"], **columns) == [2.0, 1.0]
        with pytest.raises(JudgeError, match="this trainer knows no missing reward"):
            reward(["mumble"])
        assert judge_orm(url, unscored=1.0)()(["mumble"]) == [1.0]


def test_a_server_that_fails_pays_nothing_and_soon_stops_the_trainer() -> None:
    with ScriptedEndpoint(lambda *_: Fail(404)) as server:
        reward = judge_reward(server.base_url, backoff_s=0.0, batch_size=1)
        assert reward(prompts=["Hi?"], completions=["a"]) == [None]
        with pytest.raises(EndpointError, match="5 calls in a row failed alike"):
            reward(prompts=list("abcdefg"), completions=["a"] * 7)


def test_trls_own_trainer_is_paid_by_a_served_judge(tmp_path: Path) -> None:
    """The tutorial's lines: a text policy of random weights, two steps of GRPO; the rewards that TRL logs are the judge's."""
    pytest.importorskip("trl", reason="TRL is in the extra unisrm")
    datasets = pytest.importorskip("datasets")
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", "hi", "so", "sad", "glad", "am", "you"]
    vocabulary = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    torch.manual_seed(0)
    sizes = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    policy = LlamaForCausalLM(sizes)
    before = policy.lm_head.weight.detach().clone()
    data = datasets.Dataset.from_dict({"prompt": ["hi you", "you sad"], "style": ["sad", "happy"]})
    settings: dict[str, Any] = dict(
        output_dir=str(tmp_path), max_steps=2, num_generations=4, per_device_train_batch_size=4, max_completion_length=6,
        report_to=[], save_strategy="no", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False,
        learning_rate=0.1, disable_tqdm=True, seed=0,
    )  # fmt: skip
    with serving(judge := Words()) as url:
        trainer = block_of("pay_with_trl.py")["train"](policy, tokenizer, data, url, **settings)
    logged = [row["rewards/paras2s_judge/mean"] for row in trainer.state.log_history if "rewards/paras2s_judge/mean" in row]
    assert logged == pytest.approx([np.mean(scores) for scores in judge.scores], rel=1e-5)
    assert len(logged) == 2
    assert len({score for scores in judge.scores for score in scores}) > 1
    assert not torch.equal(before, policy.lm_head.weight)
