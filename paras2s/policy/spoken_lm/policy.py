"""`SpokenLmPolicy`: any causal language model with a chat template, made to hear prosody and to choose its own.

It reads the question's transcript as its own text and the prosody of its clip as a vector (see `network.py`), writes its
answer, and says how each phrase is to be spoken: level, range, rate, loudness and tilt of Piper's voice (see `prosody.py`).
Both streams are sampled, and both can be rewarded. A new one is made by `make_spoken_lm` from a language model.

Left out: recognising the words itself (the transcript is the recogniser's), and recomputing activations.
Alphabet: B prompts, G answers a prompt, T steps, K = 5 codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.audio.prosody import UTTERANCE_DIM, describe
from paras2s.audio.synthesis import RATE_HZ
from paras2s.configs.schema.align import AugmentConfig
from paras2s.errors import PolicyError, one_line
from paras2s.policy.base import Policy
from paras2s.policy.csm import read_tokenizer
from paras2s.policy.dual_stream.sampler import uniforms_of
from paras2s.policy.embedded.frontend import ClipFeatures
from paras2s.policy.spoken_lm.network import SpokenLmNetwork
from paras2s.policy.spoken_lm.prosody import NEUTRAL, SIZES, VERSION, Narrator, Phrase, codes_of, measure_style, sayable
from paras2s.policy.streams import grouped, logits_of
from paras2s.policy.types import (
    ClipStore,
    Generation,
    PolicySpec,
    Prompt,
    SampleRequest,
    SlotSpec,
    Turn,
    slot_names,
    style_sentence,
    with_words,
)
from paras2s.policy.weights import (
    check_state,
    load_tensors,
    read_config,
    shapes_of,
    shard_files,
    stored_dtype,
    stored_shapes,
    write_tensors,
)
from paras2s.types import Block, Query
from paras2s.utils.io import write_json

ARCHITECTURE = "SpokenLm"
LAYERS = r"lm\.model\.layers\.\d+"
LORA_TARGETS = LAYERS + r"\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
# Positions before the question's words at which its prosody is added; it is added at the prompt's last position as well.
MARKS = 4
# Stands for what is said while the chat template is laid out.
CONTENT = re.compile("\x02(\\d+)\x03")
SYSTEM = "Answer in one short sentence."
# A token whose text ends so ends a phrase.
PHRASE_END = re.compile(r"[,.;:!?]\s*$")
# Text tokens a second: some three a word, at Piper's plain rate.
STEPS_PER_S = 4.0
ROWS_AT_ONCE = 64
CONFIG_KEYS = ("prosody_layer", "language_model")


class SpokenLmPolicy(Policy):
    """A language model, a reader of prosody and a narrator behind the policy interface."""

    model: SpokenLmNetwork
    spoken_at_once = 64

    def __init__(self, lm: Any, tokenizer: Any, prosody_layer: int) -> None:
        """Take over a language model of transformers and its tokenizer. Raises PolicyError: they do not fit."""
        layers, words = int(lm.config.num_hidden_layers), int(lm.config.vocab_size)
        if not 0 <= prosody_layer < layers:
            raise PolicyError(f"prosody_layer {prosody_layer} is outside the model's {layers} layers, which count from 0")
        if tokenizer.chat_template is None:
            raise PolicyError("the tokenizer has no chat template: choose an instruct model")
        if len(tokenizer) > words:
            raise PolicyError(f"the tokenizer ({len(tokenizer)} pieces) is another model's: this one has {words} words")
        self.tokenizer, self.end_id = tokenizer, int(tokenizer.eos_token_id)
        pieces = [tokenizer.decode([number]) for number in range(len(tokenizer))]
        ends = [number for number, piece in enumerate(pieces) if PHRASE_END.search(piece)]
        self.model = SpokenLmNetwork(lm, prosody_layer, ends, self.end_id, UTTERANCE_DIM).eval()
        self.narrator = Narrator()
        context = int(lm.config.max_position_embeddings)
        self.spec = PolicySpec(
            slots=(
                SlotSpec("text", "text", 0, words),
                *(SlotSpec(name, "audio", 0, size) for name, size in zip(slot_names(len(SIZES))[1:], SIZES, strict=True)),
            ),
            step_rate_hz=STEPS_PER_S, input_rate_hz=RATE_HZ, output_rate_hz=RATE_HZ, lora_targets=LORA_TARGETS,
            adaptor_parameters=r"prosody_reader\..*", sharded=LAYERS, context_steps=context, code_format=VERSION,
        )  # fmt: skip

    # -- prompts and targets ------------------------------------------------------------------------------------------

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode a dialogue by the model's chat template; of its sounds, the prosody of the last one is read.

        Raises:
            PolicyError: it does not end with a user's clip and its words, or is longer than the context.
        """
        if not turns or turns[-1].role != "user" or turns[-1].clip is None or not turns[-1].text.strip():
            raise PolicyError("a prompt ends with a user's clip and its transcript; give both")
        return self.prompt_of(turns, describe(turns[-1].clip)[1])

    def prompt_of(self, turns: Sequence[Turn], utterance: np.ndarray) -> Prompt:
        """Encode the words of a dialogue and the prosody [45] of its last turn. Raises PolicyError: it is too long."""
        said = [turn.text for turn in turns]
        messages = [{"role": turn.role, "content": f"\x02{number}\x03"} for number, turn in enumerate(turns)]
        if turns[0].role != "system":
            messages.insert(0, {"role": "system", "content": SYSTEM})
        laid_out = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids, first = list[int](), 0
        for index, part in enumerate(CONTENT.split(laid_out)):
            if index % 2 == 0:
                ids += self.tokenizer(part, add_special_tokens=False)["input_ids"]
                continue
            if int(part) == len(said) - 1:
                first = len(ids)
                ids += [self.end_id] * MARKS
            # What is said is text, also where it looks like a mark of the template.
            ids += self.tokenizer(said[int(part)], add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if len(ids) >= (self.spec.context_steps or 0):
            raise PolicyError(f"the dialogue has {len(ids)} tokens, the context {self.spec.context_steps}; leave out turns")
        marked = np.zeros(len(ids), dtype=bool)
        marked[first : first + MARKS] = marked[-1] = True
        mean, spread = (part.cpu().numpy() for part in (self.model.feature_mean, self.model.feature_spread))
        features = np.clip((utterance - mean) / spread, -4, 4).astype(np.float32) * marked[:, None]
        return Prompt(np.zeros((len(ids), len(SIZES)), dtype=np.int64), np.array(ids, dtype=np.int64), features, marked)

    def encode_queries(self, clips: ClipStore, queries: Sequence[Query]) -> list[Prompt]:
        """Encode spoken questions to prompts, behind the words of their histories; prosody stored beside a clip is read."""
        prompts = []
        for query in queries:
            stored = clips.cached_features(query.clip)
            utterance = (
                describe(clips.clip(query.clip))[1] if stored is None else ClipFeatures.from_bytes(stored, query.clip).utterance
            )
            past = [Turn(turn.speaker, turn.text) for turn in query.history]
            prompts.append(self.prompt_of([*past, Turn("user", query.transcript)], utterance))
        return prompts

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Encode a demonstration. Raises PolicyError: Piper can read nothing of it; AudioError: its clip is silent."""
        return self._targets([(clip, text)])[0]

    def encode_demonstrations(self, clips: ClipStore, answers: Sequence[tuple[str, str]]) -> list[tuple[Block, ...]]:
        """See `Policy.encode_demonstrations`; Piper is started once."""
        return self._targets([(clips.clip(name), text) for name, text in answers])

    def _targets(self, answers: Sequence[tuple[Clip, str]]) -> list[tuple[Block, ...]]:
        """Return the words of answers, and for each of their phrases the codes nearest to how the whole clip is said."""
        plain = [self._said(text, NEUTRAL) for _, text in answers]
        phrases = [self.phrases(blocks, 0) for blocks in plain]
        if not all(phrases):
            text = next(text for (_, text), own in zip(answers, phrases, strict=True) if not own)
            raise PolicyError(f"an answer has nothing that Piper can read: {text[:80]!r}")
        readings = self.narrator.speak(phrases, [0] * len(phrases))
        codes = [codes_of(measure_style(clip, reading)) for (clip, _), reading in zip(answers, readings, strict=True)]
        return [self._said(text, own) for (_, text), own in zip(answers, codes, strict=True)]

    def _said(self, text: str, codes: Sequence[int]) -> tuple[Block, ...]:
        """Return an answer whose phrases all have the same codes [5]."""
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.end_id]
        begins = self.model.begins(torch.tensor([ids], device=self.model.device)).cpu().numpy()[..., None]
        tokens = np.concatenate([np.array(ids)[None, :, None], np.where(begins, np.array(codes), np.array(NEUTRAL))], -1)
        sampled = np.concatenate([np.ones((1, len(ids), 1), bool), np.repeat(begins, len(SIZES), -1)], -1)
        return (Block(slot_names(len(SIZES)), tokens.astype(np.int64), sampled, np.zeros(tokens.shape)),)

    def with_style(self, prompt: Prompt, words: str) -> Prompt:
        """See `Policy.with_style`."""
        ids = self.tokenizer(style_sentence(words), add_special_tokens=False)["input_ids"]
        return with_words(prompt, int(np.flatnonzero(prompt.continuous)[0]), ids, [0] * len(SIZES))

    @classmethod
    def augment_prompt(cls, prompt: Prompt, config: AugmentConfig, rng: np.random.Generator) -> Prompt:
        """Add noise to the prosody, one draw an utterance: a few clips would be known by their exact numbers."""
        noise = config.prosody_noise * rng.standard_normal(UTTERANCE_DIM).astype(np.float32)
        noisy = np.asarray(prompt.features) + noise
        return replace(prompt, features=noisy * prompt.continuous[:, None])

    # -- answers ------------------------------------------------------------------------------------------------------

    def generate(self, request: SampleRequest) -> list[Generation]:
        """See `Policy.generate`. Raises PolicyError: more steps than the context holds."""
        longest, limit = max(prompt.length for prompt in request.prompts), self.spec.context_steps or 0
        if longest + request.sampling.max_steps > limit:
            raise PolicyError(
                f"{longest} tokens of prompt and {request.sampling.max_steps} of answer: the context holds {limit}"
            )
        self.model.eval()
        generations = list[Generation]()
        for part in request.parts(ROWS_AT_ONCE):
            uniforms = uniforms_of(part.seeds, part.sampling.max_steps, 1 + len(SIZES)).to(self.model.device)
            generations += grouped(self.model.sample(part, uniforms), part.seeds)
        return generations

    def answer_logits(self, prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
        """See `streams.logits_of`."""
        return logits_of(self.model, (self.model.lm.get_output_embeddings(), *self.model.prosody_heads), prompt, blocks)

    def phrases(self, blocks: Sequence[Block], answer: int) -> list[Phrase]:
        """Return an answer's phrases that can be said, with their codes."""
        (block,) = blocks
        spans: list[tuple[list[int], tuple[int, ...]]] = []
        for tokens, sampled in zip(block.tokens[answer].tolist(), block.sampled[answer].tolist(), strict=True):
            if not sampled[0] or tokens[0] == self.end_id:
                break
            if sampled[1]:
                spans.append(([], tuple(tokens[1:])))
            spans[-1][0].append(tokens[0])
        spoken = [(sayable(self.tokenizer.decode(ids, skip_special_tokens=True)), codes) for ids, codes in spans]
        return [(text, codes) for text, codes in spoken if text]

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Return the codes of one answer, a row a phrase."""
        (block,) = blocks
        return np.asarray(block.tokens[answer, block.sampled[answer, :, 1], 1:])

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Return the waveform of one answer; takes differ a little by their seed."""
        return self.decode_audios([(blocks, answer, seed)])[0]

    def decode_audios(self, answers: Sequence[tuple[Sequence[Block], int, int]]) -> list[Clip]:
        """Return the waveforms of several answers, for which Piper is started once."""
        return self.narrator.speak([self.phrases(blocks, n) for blocks, n, _ in answers], [seed for *_, seed in answers])

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Return the text stream of one answer, up to its end."""
        (block,) = blocks
        ids = block.tokens[answer, block.sampled[answer, :, 0], 0].tolist()
        return str(self.tokenizer.decode([number for number in ids if number != self.end_id], skip_special_tokens=True)).strip()

    @property
    def final_ids(self) -> dict[str, tuple[int, ...]]:
        """Return the id that ends an answer."""
        return {"text": (self.end_id,)}

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write weights, tokenizer and, last, `policy.json`, which marks the folder as complete."""
        self.refuse_adapters()
        (folder / "policy.json").unlink(missing_ok=True)
        write_tensors(folder, _stored(self.model))
        self.tokenizer.save_pretrained(str(folder))
        described = {"prosody_layer": self.model.prosody_layer, "language_model": self.model.lm.config.to_dict()}
        write_json(folder / "policy.json", {"architecture": ARCHITECTURE, **described})

    def reload(self, folder: Path) -> None:
        """Read weights alone."""
        load_tensors(_stored(self.model), shard_files(folder), str(folder))

    @classmethod
    def _empty(cls, folder: Path) -> SpokenLmPolicy:
        from transformers import AutoConfig, AutoModelForCausalLM

        described = read_config(folder / "policy.json", CONFIG_KEYS)
        held: Any = described["language_model"]
        try:
            build: Any = AutoModelForCausalLM.from_config
            lm = build(AutoConfig.for_model(**held))
            prosody_layer = int(str(described["prosody_layer"]))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise PolicyError(f"{folder}/policy.json: no language model of transformers ({one_line(error)[:300]})") from error
        return cls(lm, read_tokenizer(folder), prosody_layer)

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        """Compare a checkpoint's description, tokenizer and tensors, from their headers. Raises PolicyError: they differ."""
        with torch.device("meta"):
            policy = cls._empty(folder)
        check_state(shapes_of(_stored(policy.model)), stored_shapes(shard_files(folder)), str(folder))

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> SpokenLmPolicy:
        """Read what `save` wrote. Raises PolicyError: the parts do not fit."""
        policy = cls._empty(folder)
        dtype = stored_dtype(shard_files(folder)) if dtype is None else dtype
        if dtype in (torch.bfloat16, torch.float16):
            # Rotary frequencies and the features' means stay in float32, which a cast of the whole model would round.
            for held in (*policy.model.parameters(), policy.model.state_scale):
                held.data = held.data.to(dtype)
        else:
            policy.model.to(dtype)
        policy.reload(folder)
        policy.model.freeze_below()
        policy.model.to(device)
        return policy


def _stored(model: SpokenLmNetwork) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint; a head that is the table of words is written once."""
    tied = model.lm.config.tie_word_embeddings
    return {name: value for name, value in model.state_dict().items() if not (tied and name == "lm.lm_head.weight")}
