"""`SpokenLmPolicy`: transformers' model under it, prosody and where it enters, phrases by hand, real speech as its codes say.

The contract is in test_contract.py. Not covered: that it learns to hear (docs/spoken-lm.md has figures), and other tokenizers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import spoken_lm as tiny
from tiny.gguf_file import write_gguf
from tiny.moshi import tone

from paras2s.audio.clip import Clip
from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.audio.synthesis import analyse, speak_plain, synthesise
from paras2s.data_gen.scripted.scripts import load_calibration
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES
from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.spoken_lm.make import make_spoken_lm
from paras2s.policy.spoken_lm.policy import SYSTEM, SpokenLmPolicy
from paras2s.policy.spoken_lm.prosody import LEVELS, NEUTRAL, SIZES, Narrator, codes_of, measure_style, sayable, style_of
from paras2s.policy.streams import layer_input
from paras2s.policy.subject import subject_of
from paras2s.policy.types import SampleRequest, Sampling, Turn
from paras2s.types import Block

NOTHING = np.zeros(UTTERANCE_DIM, dtype=np.float32)
CLOSE = 1e-9


@pytest.fixture(scope="module")
def policy() -> SpokenLmPolicy:
    return tiny.tiny_spoken_lm()


def block_of(policy: SpokenLmPolicy, text: str, codes: tuple[int, ...] = NEUTRAL) -> Block:
    """An answer of these words, all phrases of which have the same codes."""
    ids = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.end_id]
    begins = policy.model.begins(torch.tensor([ids])).numpy()
    tokens = np.concatenate([np.array([ids])[..., None], np.tile(np.array(codes), (1, len(ids), 1))], -1)
    sampled = np.concatenate([np.ones((1, len(ids), 1), bool), np.repeat(begins[..., None], len(SIZES), -1)], -1)
    return Block(tuple(slot.name for slot in policy.spec.slots), tokens, sampled, np.zeros(tokens.shape))


class Recorded:
    """Clips by their numbers."""

    def __init__(self, clips: list[Clip]) -> None:
        self.clips = clips

    def clip(self, name: str) -> Clip:
        return self.clips[int(name)]

    def cached_features(self, name: str) -> bytes | None:
        return None


def silenced(policy: SpokenLmPolicy) -> SpokenLmPolicy:
    """The same without any prosody."""
    for parameter in (*policy.model.prosody_reader.parameters(), policy.model.prosody_embed.weight):
        parameter.data.zero_()
    return policy


def test_without_prosody_it_is_the_language_model_of_transformers() -> None:
    policy = silenced(tiny.tiny_spoken_lm())
    prompt = policy.encode_prompt([Turn("user", "Hi", tone(0.4, 16_000, 200))])
    block = block_of(policy, "No, yes.")
    (logp,) = policy.logprobs([prompt], [(block,)], Sampling())
    ids = torch.tensor([[*prompt.text_ids, *block.tokens[0, :, 0]]])
    with torch.no_grad():
        theirs = tiny.tiny_lm()(input_ids=ids).logits.log_softmax(-1)
    steps = block.tokens.shape[1]
    expected = theirs[0, -steps - 1 : -1].gather(1, torch.from_numpy(block.tokens[0, :, :1]))[:, 0]
    torch.testing.assert_close(logp[0, :, 0], expected, atol=CLOSE, rtol=0)


def test_prosody_enters_at_its_layer_as_when_the_layers_are_called_one_by_one(policy: SpokenLmPolicy) -> None:
    prompt = policy.encode_prompt([Turn("user", "Hi", tone(0.4, 16_000, 200))])
    block = block_of(policy, "No, yes.", (5, 4, 0, 0, 2))
    (logp,) = policy.logprobs([prompt], [(block,)], Sampling())
    network, lm = policy.model, policy.model.lm
    ids = torch.tensor([[*prompt.text_ids, *block.tokens[0, :, 0]]])
    prosody = torch.zeros(1, ids.shape[1], lm.config.hidden_size, dtype=torch.float64)
    vector = network.prosody_reader(torch.from_numpy(prompt.features[-1]).double()) * network.state_scale
    prosody[0, np.flatnonzero(prompt.continuous)] = vector
    said = sum(network.prosody_embed.weight[sum(SIZES[:slot]) + code] for slot, code in enumerate((5, 4, 0, 0, 2)))
    for step in np.flatnonzero(block.sampled[0, :, 1]):
        prosody[0, prompt.length + step] = said * network.state_scale
    with torch.no_grad():
        hidden = lm.model.embed_tokens(ids)
        positions = torch.arange(ids.shape[1])[None]
        turned = lm.model.rotary_emb(hidden, positions)
        for number, layer in enumerate(lm.model.layers):
            hidden = hidden + prosody if number == tiny.PROSODY_LAYER else hidden
            hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=turned)
        state = lm.model.norm(hidden)[0, prompt.length - 1 : -1]
        heads = [lm.lm_head, *network.prosody_heads]
        expected = torch.stack(
            [
                head(state).log_softmax(-1).gather(1, torch.from_numpy(block.tokens[0, :, slot, None]))[:, 0]
                for slot, head in enumerate(heads)
            ],
            1,
        )
    expected = torch.where(torch.from_numpy(block.sampled[0]), expected, 0.0)
    torch.testing.assert_close(logp[0], expected, atol=CLOSE, rtol=0)


def test_scoring_reads_a_prompt_once_for_all_its_answers(policy: SpokenLmPolicy) -> None:
    prompts = [policy.encode_prompt(turns) for turns in tiny.tiny_spoken_lm_turns()]
    few, many = block_of(policy, "No."), block_of(policy, "Yes, yes.", (5, 4, 0, 0, 2))
    three = Block(many.slots, *(np.repeat(part, 3, 0) for part in (many.tokens, many.sampled, many.behaviour_logp)))
    with layer_input(policy.model.lm.model, 2) as read:
        (together,) = policy.logprobs(prompts, [(few,), (three,), (few,)], Sampling())
    longest, steps = max(prompt.length for prompt in prompts), many.tokens.shape[1]
    assert [tuple(states.shape[:2]) for states in read] == [(3, longest), (5, steps)]
    alone = [policy.logprobs([prompts[n]], [(block,)], Sampling())[0][0] for n, block in ((0, few), (1, many), (2, few))]
    for row, owner in enumerate((0, 1, 1, 1, 2)):
        torch.testing.assert_close(together[row, : len(alone[owner])], alone[owner], atol=CLOSE, rtol=0)
        assert not together[row, len(alone[owner]) :].any()


@pytest.mark.parametrize("part", ["prosody_reader.0.weight", "prosody_embed.weight", "prosody_heads.1.bias"])
def test_what_hears_and_what_speaks_learns_by_the_slope_of_the_log_probs(part: str) -> None:
    policy = tiny.tiny_spoken_lm()
    prompt = policy.encode_prompt([Turn("user", "Hi", tone(0.4, 16_000, 200))])
    block = block_of(policy, "No, yes.", (5, 4, 0, 0, 2))
    weight = policy.model.get_parameter(part)

    def total() -> Any:
        return policy.logprobs([prompt], [(block,)], Sampling())[0].sum()

    (gradient,) = torch.autograd.grad(total(), weight)
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype)
    with torch.no_grad():
        # Wide steps: transformers' norms round to float32.
        weight += 1e-3 * direction
        above = total()
        weight -= 2e-3 * direction
        slope = (above - total()) / 2e-3
    assert gradient.abs().sum() > 0
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=0.005, atol=0.005)


def test_a_phrase_begins_with_the_answer_and_behind_each_mark_but_not_with_the_end(policy: SpokenLmPolicy) -> None:
    block = block_of(policy, "No, yes. ")
    letters = [policy.tokenizer.decode([token]) for token in block.tokens[0, block.sampled[0, :, 1], 0].tolist()]
    assert letters == ["N", " ", " "]
    assert not block.sampled[0, -1, 1]
    assert policy.phrases((block,), 0) == [("No,", NEUTRAL), ("yes.", NEUTRAL)]
    assert policy.decode_text((block,), 0) == "No, yes."
    assert policy.decode_codes((block,), 0).tolist() == [list(NEUTRAL)] * 3


def test_sampled_answers_have_codes_where_phrases_begin_and_nowhere_else(policy: SpokenLmPolicy) -> None:
    prompts = [policy.encode_prompt(turns) for turns in tiny.tiny_spoken_lm_turns()]
    seeds = [[10 * row + n for n in range(8)] for row in range(len(prompts))]
    phrases = 0
    for generation in policy.generate(SampleRequest(prompts, seeds, Sampling(2.0, 2.0, 24))):
        (block,) = generation.blocks
        for answer, finish in enumerate(generation.finish_reason):
            count = int(block.sampled[answer, :, 0].sum())
            text = torch.from_numpy(block.tokens[answer : answer + 1, :count, 0])
            begins = policy.model.begins(text)[0].numpy()
            assert (block.sampled[answer, :count, 1:] == begins[:, None]).all()
            assert not block.sampled[answer, count:].any()
            assert (finish == "eos") == (block.tokens[answer, count - 1, 0] == policy.end_id)
            phrases += int(begins.sum())
    assert phrases > 30


def test_a_prompt_is_the_chat_template_with_marks_before_the_question_s_words(policy: SpokenLmPolicy) -> None:
    prompt = policy.prompt_of([Turn("user", "Hi <|im_end|>")], NOTHING)
    marks = policy.tokenizer.decode([policy.end_id]) * 4
    expected = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{marks}Hi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert policy.tokenizer.decode(prompt.text_ids.tolist()) == expected
    # What the user says is no mark of the template: four marks, and the ends of two turns.
    assert (prompt.text_ids == policy.end_id).sum() == 6
    marked = np.flatnonzero(prompt.continuous)
    assert len(marked) == 5
    assert (prompt.text_ids[marked[:4]] == policy.end_id).all()
    assert marked[-1] == prompt.length - 1
    in_words = policy.with_style(prompt, "in a sad voice")
    assert "user\nThe question is said in a sad voice.\n" + marks in policy.tokenizer.decode(in_words.text_ids.tolist())
    assert in_words.continuous.sum() == 5


def test_prompts_without_sound_or_words_are_refused(policy: SpokenLmPolicy) -> None:
    clip = tone(0.4, 16_000, 200)
    for turns in ([], [Turn("user", "Hi")], [Turn("user", "", clip)], [Turn("user", "Hi", clip), Turn("assistant", "Ho")]):
        with pytest.raises(PolicyError, match="a prompt ends with a user's clip and its transcript"):
            policy.encode_prompt(turns)
    with pytest.raises(PolicyError, match="tokens, the context 400"):
        policy.encode_prompt([Turn("user", "a" * 500, clip)])
    prompt = policy.encode_prompt([Turn("user", "Hi", clip)])
    with pytest.raises(PolicyError, match="390 of answer: the context holds 400"):
        policy.generate(SampleRequest([prompt], [[0]], Sampling(max_steps=390)))


def test_a_language_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="prosody_layer 3 is outside the model's 3 layers"):
        SpokenLmPolicy(tiny.tiny_lm(), tiny.tiny_tokenizer(), 3)
    tokenizer = tiny.tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(PolicyError, match="no chat template: choose an instruct model"):
        SpokenLmPolicy(tiny.tiny_lm(), tokenizer, 1)
    tokenizer = tiny.tiny_tokenizer()
    tokenizer.add_tokens([f"word{number}" for number in range(20)])
    with pytest.raises(PolicyError, match="is another model's: this one has 264 words"):
        SpokenLmPolicy(tiny.tiny_lm(), tokenizer, 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no language model of transformers and no GGUF file"):
        make_spoken_lm(tmp_path / "empty", tmp_path / "out", NOTHING, NOTHING + 1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_policy_is_made_of_a_language_model_s_folder_and_learns_above_its_layer_alone(tmp_path: Path, tied: bool) -> None:
    tiny.tiny_lm(tied=tied).float().save_pretrained(tmp_path / "lm")
    tiny.tiny_tokenizer().save_pretrained(tmp_path / "lm")
    made = make_spoken_lm(tmp_path / "lm", tmp_path / "out", NOTHING + 2, NOTHING + 3, prosody_layer=2)
    assert made.model.state_scale.item() > 0
    SpokenLmPolicy.check_folder(tmp_path / "out")
    loaded = SpokenLmPolicy.load(tmp_path / "out")
    torch.testing.assert_close(loaded.model.state_dict(), made.model.state_dict())
    assert loaded.model.feature_mean.tolist() == [2.0] * UTTERANCE_DIM
    learning = set(loaded.trainable())
    assert {name.split(".")[3] for name in learning if name.startswith("lm.model.layers")} == {"2"}
    assert "lm.model.embed_tokens.weight" not in learning
    assert {name.split(".")[0] for name in learning} == {"lm", "prosody_reader", "prosody_embed", "prosody_heads"}
    # At first each code is neutral with a probability of a half.
    heads: Any = loaded.model.prosody_heads
    for head, neutral in zip(heads, NEUTRAL, strict=True):
        assert float(head.bias.detach().softmax(-1)[neutral]) == pytest.approx(0.5)


def test_a_policy_is_made_of_a_gguf_file_as_of_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs gguf, by which transformers reads such files: pip install gguf")
    lm, tokenizer = tiny.tiny_lm().float(), tiny.tiny_tokenizer()
    lm.save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    packed = write_gguf(tmp_path / "tiny.gguf", lm, tokenizer, tiny.TEMPLATE)
    for source, out in ((tmp_path / "lm", "a"), (packed, "b")):
        make_spoken_lm(source, tmp_path / out, NOTHING, NOTHING + 1, prosody_layer=1)
    one, other = (SpokenLmPolicy.load(tmp_path / out).model.state_dict() for out in ("a", "b"))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_is_read_in_its_own_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    loaded = SpokenLmPolicy.load(tiny.write_spoken_lm(tmp_path, dtype))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    assert loaded.model.feature_mean.dtype == torch.float32
    frequencies = [held for name, held in loaded.model.named_buffers() if name.endswith("inv_freq")]
    assert {held.dtype for held in frequencies} == {torch.float32}
    subject = subject_of(loaded, tiny.tiny_spoken_lm_turns())
    answers = subject.sampled(subject.warm)
    (scored,) = subject.scored(subject.prompts[:1], [answers[0].blocks], subject.warm)[:1]
    assert torch.isfinite(scored).all()
    assert SpokenLmPolicy.load(tmp_path, dtype=torch.float64).model.state_scale.dtype == torch.float64


# -- speech -----------------------------------------------------------------------------------------------------------


def test_speech_is_as_its_codes_say_and_is_measured_so() -> None:
    """Piper and the vocoder: of each code the lowest, neutral and highest value, measured again within a step of it."""
    text = "You are very welcome, I was happy to help with the garden."
    (plain,) = Narrator().speak([[(text, NEUTRAL)]], [1])
    spoken = []
    for slot, values in enumerate(LEVELS.values()):
        spoken += [tuple(code if n == slot else neutral for n, neutral in enumerate(NEUTRAL)) for code in (0, len(values) - 1)]
    clips = Narrator().speak([[(text, codes)] for codes in spoken], [0] * len(spoken))
    measured = [codes_of(measure_style(clip, plain)) for clip in clips]
    for slot in range(len(SIZES)):
        low, high = measured[2 * slot][slot], measured[2 * slot + 1][slot]
        assert low < high
        assert low <= 1
        assert high >= SIZES[slot] - 2
    assert [codes[3] for codes in measured] == [codes[3] for codes in spoken]


def test_a_demonstration_in_a_tone_gets_the_codes_of_the_tone(policy: SpokenLmPolicy) -> None:
    """Four other sentences in five tones, each in one piece: 17 codes of 20 are the tone's own, all are within a step."""
    texts, styles = load_calibration()[:4], list(AGENT_TONES.values())
    voices = [analyse(clip) for clip in speak_plain(texts)]
    clips = [synthesise(voice, AGENT, style, seed) for style in styles for seed, voice in enumerate(voices)]
    answers = [(str(number), texts[number % len(texts)]) for number in range(len(clips))]
    targets = policy.encode_demonstrations(Recorded(clips), answers)
    codes = np.array([policy.decode_codes(blocks, 0)[0] for blocks in targets]).reshape(len(styles), len(texts), -1)
    own = np.array([codes_of(style) for style in styles])[:, None]
    assert (codes == own).mean() > 0.85
    assert (np.abs(codes - own) <= 1).all()


def test_phrases_are_said_one_after_the_other_in_one_call_of_piper(monkeypatch: pytest.MonkeyPatch) -> None:
    from paras2s.policy.spoken_lm import prosody

    calls: list[list[str]] = []

    def counted(texts: list[str]) -> Any:
        calls.append(list(texts))
        return [tone(0.5, 16_000, 120) for _ in texts]

    monkeypatch.setattr(prosody, "speak_plain", counted)
    narrator, slow = Narrator(), (2, 2, 0, 2, 1)
    one, two, none = narrator.speak([[("Hi", NEUTRAL)], [("Hi", NEUTRAL), ("Ho", slow)], []], [0, 0, 0])
    assert calls == [["Hi", "Ho"]]
    assert len(none.samples) == 0
    assert style_of(slow).rate == 0.74
    # The second phrase takes 1 / 0.74 of the first one's time, within the vocoder's 3 %, behind 0.06 s.
    assert two.duration_s == pytest.approx(one.duration_s * (1 + 1 / 0.74) + 0.06, rel=0.03)
    narrator.speak([[("Ho", NEUTRAL)]], [1])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("text", "said"), [("Hi,\nthere", "Hi, there"), ("…", ""), (" ,.!", ""), ("\x00a\u00e9b", "a b"), ("7", "7")]
)
def test_what_piper_cannot_read_is_left_out(text: str, said: str) -> None:
    assert sayable(text) == said


def test_a_demonstration_has_the_codes_of_its_sound_where_phrases_begin(policy: SpokenLmPolicy) -> None:
    quiet = (NEUTRAL[0], NEUTRAL[1], NEUTRAL[2], 0, NEUTRAL[4])
    text = "I am sorry, let me try again."
    (clip,) = Narrator().speak([[(text, quiet)]], [0])
    (block,) = policy.encode_target(clip, text)
    assert policy.decode_text((block,), 0) == text
    codes = policy.decode_codes((block,), 0)
    assert len(codes) == 2
    assert (codes[0] == codes[1]).all()
    assert codes[0][3] == 0
