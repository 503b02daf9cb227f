"""What Qwen2.5-Omni and Qwen3-Omni have in common: a thinker that writes a reply, then a talker that speaks it.

Prompts by the chat template, a cache that holds a prompt once for all its answers, drawing of one stream after another, and
scoring of both. Rows are padded on the right, where a causal model does not look.
Alphabet: B prompts, G answers a prompt, N answers, L prompt tokens, T steps, S slots, H the thinker's width, V ids.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream.sampler import check_request, pick, uniforms_of
from paras2s.policy.types import Generation, Prompt, Sampling, Turn
from paras2s.policy.weights import shard_files
from paras2s.types import Block
from paras2s.utils.io import write_bytes

INPUT_RATE_HZ, OUTPUT_RATE_HZ = 16_000, 24_000
# Samples a mel frame, and the longest clip (released `preprocessor_config.json`).
HOP, MAX_CLIP_S = 160, 300.0
START, END = "<|im_start|>", "<|im_end|>"
# Read and written as they are, so that a checkpoint of ours is one for everybody else.
COMPANIONS = ("generation_config.json", "preprocessor_config.json", "chat_template.json", "chat_template.jinja")
THINKER_NORM = "thinker.model.norm.weight"
# Answers under way at once.
ROWS_AT_ONCE = 64
# What `advance(rows, step, tokens)` does: read what was drawn at `step`, [n, S], and give the next states [n, .].
Advance = Callable[[Tensor, int, Tensor], Tensor]
# Tokens and log-probs [n, S] of one step, from states [n, .] and uniforms [n, S].
Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def replies_of(block: Block, end: int) -> np.ndarray:
    """Number of words spoken of each answer [G]: all but the last token, which the thinker never read.

    A reply ends with its first `end` (which also pads), or with its block. The `sampled` mask is not read: a learner that
    masks words out does not change what the sound was conditioned on.
    """
    ends = block.tokens[:, :, 0] == end
    return np.where(ends.any(1), ends.argmax(1), ends.shape[1] - 1)


def stored_name(name: str) -> str:
    """A parameter's name in a checkpoint: as released, which is what transformers writes and not how it names its modules."""
    name = re.sub(r"^thinker\.model\.(audio_tower|visual)\.", r"thinker.\1.", name)
    return name.replace("thinker.model.language_model.", "thinker.model.", 1)


def thinker_dtype(folder: Path) -> torch.dtype:
    """The precision of a checkpoint's thinker; its vocoder's may be another.

    Raises:
        PolicyError: there is no thinker.
    """
    from safetensors import safe_open

    for path in shard_files(folder):
        with safe_open(path, "pt") as held:
            if THINKER_NORM in held.keys():  # noqa: SIM118 - a safetensors file is no mapping
                return held.get_tensor(THINKER_NORM).dtype
    raise PolicyError(f"{folder}: {THINKER_NORM} is missing; this is no Omni model")


# -- tensors of rows that are padded on the right ---------------------------------------------------------------------


def run_stack(stack: Any, x: Tensor, start: Tensor | None = None, seen: Tensor | None = None, cache: Any = None) -> Tensor:
    """A decoder's states [N, L, .] of inputs that start at `start` [N], or at 0; padding on the right is never looked at.

    Sound without pictures has the positions of text, three equal rows (`get_rope_index`), so it is not called; a test compares.
    """
    position = torch.arange(x.shape[1], device=x.device) + (0 if start is None else start[:, None])
    how = {"position_ids": position.expand(3, len(x), -1), "past_key_values": cache, "use_cache": cache is not None}
    return stack(inputs_embeds=x, attention_mask=seen, **how).last_hidden_state


def behind(x: Tensor, lengths: Tensor, tail: Tensor) -> Tensor:
    """[N, L + T, H]: `tail` [N, T, H] put right behind each row's own length."""
    wide = nn.functional.pad(x, (0, 0, 0, tail.shape[1]))
    place = lengths[:, None] + torch.arange(tail.shape[1], device=x.device)
    return wide.scatter(1, place[..., None].expand_as(tail), tail)


def stacked(blocks: Sequence[Block], pad: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and sampled mask [N, T, S] of all answers, padded to the longest block with one id a slot."""
    longest = max(block.tokens.shape[1] for block in blocks)
    tokens = [np.tile(np.array(pad), (len(block.tokens), longest, 1)) for block in blocks]
    sampled = [np.zeros(part.shape, dtype=bool) for part in tokens]
    for block, ids, mask in zip(blocks, tokens, sampled, strict=True):
        steps = block.tokens.shape[1]
        ids[:, :steps], mask[:, :steps] = block.tokens, block.sampled
    return torch.from_numpy(np.concatenate(tokens)).to(device), torch.from_numpy(np.concatenate(sampled)).to(device)


def score(
    head: Callable[[Tensor], Tensor], hidden: Tensor, first: Tensor, tokens: Tensor, sampled: Tensor, temperature: float
) -> Tensor:
    """Log-probs [N, T] of tokens [N, T]; step i is predicted at `first` + i. The head runs only where tokens were drawn."""
    row, step = sampled.nonzero(as_tuple=True)
    logits = head(hidden[row, first[row] + step])
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    chosen = torch.log_softmax(scaled, -1).gather(1, tokens[row, step][:, None])[:, 0]
    return chosen.new_zeros(tokens.shape).index_put((row, step), chosen)


# -- sampling ---------------------------------------------------------------------------------------------------------


class Reading:
    """A decoder's KV cache: each prompt once, and behind it the answers' tokens, n rows of them.

    Prompts are padded on the right, so that a short one's padding lies between it and its answers; `seen` hides it.
    """

    def __init__(self, stack: Any, x: Tensor, lengths: Tensor, group_size: int, limit: int) -> None:
        from transformers import DynamicCache

        self.stack, self.width, self.count = stack, x.shape[1], 0
        self.cache = DynamicCache(config=stack.config)
        self.states = run_stack(stack, x, cache=self.cache)
        self.cache.batch_repeat_interleave(group_size)
        self.lengths = lengths.repeat_interleave(group_size)
        place = torch.arange(self.width + limit, device=x.device)
        self.seen = (place < self.lengths[:, None]) | (place >= self.width)

    def feed(self, x: Tensor) -> Tensor:
        """Read one more input a row [n, .]; the state that predicts what follows it [n, .]."""
        self.count += 1
        seen = self.seen[:, : self.width + self.count]
        return run_stack(self.stack, x[:, None], self.lengths + self.count - 1, seen, self.cache)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.cache.batch_select_indices(rows)
        self.lengths, self.seen = self.lengths[rows], self.seen[rows]


@dataclass(frozen=True)
class Drawn:
    """One stream of N answers: tokens and log-probs [N, T, S], how many steps each has [N], and whether each ended [N]."""

    tokens: Tensor
    logp: Tensor
    counts: Tensor
    ended: Tensor

    @classmethod
    def nothing(cls, like: Drawn, slots: int) -> Drawn:
        """No step of any answer."""
        none = torch.zeros_like(like.counts)
        return cls(none[:, None, None].expand(-1, 1, slots), like.logp[:, :1, :1].expand(-1, 1, slots) * 0, none, none > 0)


def drawn_by(head: Callable[[Tensor], Tensor], temperature: float, top_k: int) -> Draw:
    """Steps of one slot."""

    def draw(state: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        token, logp = pick(head(state), temperature, uniforms[:, 0], top_k)
        return token[:, None], logp[:, None]

    return draw


def roll(
    reading: Reading, state: Tensor, active: Tensor, uniforms: Tensor, draw: Draw, advance: Advance, ends: tuple[int, ...]
) -> Drawn:
    """Draw the steps of answers `active` until the first slot of each has ended it or the limit is reached.

    `uniforms` [N, T, S] holds those of all answers.
    """
    tokens = torch.zeros(uniforms.shape, dtype=torch.long, device=state.device)
    logp = torch.zeros(uniforms.shape, dtype=torch.promote_types(state.dtype, torch.float32), device=state.device)
    counts, ended = torch.zeros_like(tokens[:, 0, 0]), torch.zeros_like(tokens[:, 0, 0], dtype=torch.bool)
    limit = uniforms.shape[1]
    for step in range(limit):
        drawn, chosen = draw(state, uniforms[active, step])
        fresh = ~ended[active]
        live, drawn = active[fresh], drawn[fresh]
        tokens[live, step], logp[live, step], counts[live] = drawn, chosen[fresh], step + 1
        ended[live] = torch.isin(drawn[:, 0], torch.tensor(ends, device=drawn.device))
        done = ended[active]
        if bool(done.all()) or step == limit - 1:
            break
        # Ended answers leave in bulk: moving the cache costs more than a few idle rows.
        if 8 * int(done.sum()) >= len(active):
            remaining = (~done).nonzero()[:, 0]
            reading.select(remaining)
            active = active[remaining]
        state = advance(active, step, tokens[active, step])
    return Drawn(tokens, logp, counts, ended)


def pack(names: tuple[str, ...], drawn: Drawn, rows: slice, pad: Sequence[int]) -> Block:
    """A group's answers of one stream, as long as its longest and at least one step. An end stands in the first slot alone."""
    counts, ended = drawn.counts[rows].cpu().numpy(), drawn.ended[rows].cpu().numpy()
    steps = max(int(counts.max()), 1)
    last = np.where(ended, counts - 1, counts)[:, None, None]
    sampled = np.arange(steps)[:, None] < np.where(np.arange(len(names)) == 0, counts[:, None, None], last)
    tokens = np.where(sampled, drawn.tokens[rows, :steps].cpu().numpy(), np.array(pad))
    logp = np.where(sampled, drawn.logp[rows, :steps].cpu().numpy(), 0.0)
    return Block(names, tokens, sampled, logp)


# -- the parts --------------------------------------------------------------------------------------------------------


class OmniNetwork(nn.Module):
    """Thinker and talker under transformers' names; forward is the teacher-forced pass.

    `talker_gradient`: whether the sound's gradient reaches the thinker through what the talker is given of it. Off by default:
    an answer has hundreds of codes and tens of words, so a bad voice would be mended by changing the words. The sound is
    then differentiated as if that were given, which is not the whole gradient of the joint probability.
    """

    forbidden: Tensor

    def __init__(self, thinker: Any, talker: Any, end: int, talker_gradient: bool, codec_ids: int, may: Sequence[int]) -> None:
        """`codec_ids`: rows of the talker's head; `may`: those of them that can be drawn, codes and ends."""
        super().__init__()
        self.thinker, self.talker = thinker, talker
        self.end, self.talker_gradient, self.gradient_checkpointing = end, talker_gradient, False
        forbidden = torch.ones(codec_ids, dtype=torch.bool)
        forbidden[list(may)] = False
        self.register_buffer("forbidden", forbidden, persistent=False)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.forbidden.device

    def words(self, tokens: Tensor) -> Tensor:
        """The thinker's embedding of ids [...]: [..., H]."""
        return self.thinker.model.language_model.embed_tokens(tokens)

    def codec_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] in which what is neither code nor end has no probability."""
        return self.talker.codec_head(hidden).masked_fill(self.forbidden, float("-inf"))

    def given(self, state: Tensor) -> Tensor:
        """What the talker is given of the thinker."""
        return state if self.talker_gradient else state.detach()

    def read(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """The thinker's input [B, L, H], where it is sound [B, L], and lengths [B]; padded on the right."""
        lengths = torch.tensor([prompt.length for prompt in prompts], device=self.device)
        rows = [torch.tensor(np.stack([prompt.text_ids, prompt.continuous], 1)) for prompt in prompts]
        tokens, sound = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device).unbind(-1)
        x, is_audio = self.words(tokens), sound.bool()
        # A mask and a concatenation have one order, so clips need not be told apart.
        parts = [prompt.features[prompt.continuous] for prompt in prompts if prompt.features is not None]
        if parts:
            x = x.masked_scatter(is_audio[..., None], torch.from_numpy(np.concatenate(parts)).to(x))
        return x, is_audio, lengths

    def draw_words(
        self, reading: Reading, uniforms: Tensor, sampling: Sampling, keep: Callable[[Tensor, Tensor], None] | None = None
    ) -> Drawn:
        """Replies of all answers, `uniforms` [N, T]; `keep` is given each step's rows [n], and state plus input of its word."""
        everyone = torch.arange(len(uniforms), device=self.device)
        state = reading.states[everyone // (len(everyone) // len(reading.states)), reading.lengths - 1]

        def next_word(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            embedded = self.words(tokens[:, 0])
            fed = reading.feed(embedded)
            if keep is not None:
                keep(rows, fed + embedded)
            return fed

        draw = drawn_by(self.thinker.lm_head, sampling.text_temperature, sampling.text_top_k)
        return roll(reading, state, everyone, uniforms[..., None], draw, next_word, (self.end,))

    @abstractmethod
    def sample(self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, uniforms: Tensor) -> tuple[Drawn, Drawn]:
        """Words and sound of N answers from one prefill a prompt; `uniforms` [N, T, 1 + audio slots]."""


class OmniPolicy(Policy):
    """Prompts and answers of both families: words up to and including `<|im_end|>`, then sound with a clock of its own."""

    NAME: ClassVar[str]
    # The system's turn of a dialogue that comes without one.
    SYSTEM: ClassVar[str | None]

    model: OmniNetwork

    def __init__(self, tokenizer: Any, audio_marks: tuple[str, str, str], placed: dict[str, int]) -> None:
        """`audio_marks`: begin, placeholder and end of a clip; `placed`: ids that the config gives to names."""
        from transformers import WhisperFeatureExtractor

        self.tokenizer, self.audio_marks = tokenizer, audio_marks
        self.special = {name: tokenizer.convert_tokens_to_ids(name) for name in (START, END, *audio_marks)}
        for name, number in self.special.items():
            if number is None or tokenizer.convert_ids_to_tokens(number) != name:
                raise PolicyError(f"the tokenizer has no {name}; it is not {self.NAME}'s")
            if placed.get(name, number) != number:
                raise PolicyError(f"{name} is {number} to the tokenizer and {placed[name]} to the config")
        self.companions: dict[str, bytes] = {}
        self.mel: Any = WhisperFeatureExtractor(feature_size=128, n_fft=400, hop_length=HOP, chunk_length=int(MAX_CLIP_S))  # type: ignore[no-untyped-call]

    @abstractmethod
    def audio_places(self, samples: int) -> int:
        """Placeholders of a clip of this many samples at 16 kHz; 0 for one that is too short."""

    @abstractmethod
    def _audio_features(self, clips: Sequence[np.ndarray]) -> np.ndarray:
        """The audio tower's output for all clips in order [n, H]."""

    @property
    @abstractmethod
    def audio_pad(self) -> tuple[int, ...]:
        """Ids behind the end of an answer's sound, one a slot."""

    @property
    @abstractmethod
    def given_parts(self) -> tuple[nn.Module, ...]:
        """Towers, which run when a prompt is encoded and never again, and the vocoder: none of them learns."""

    def _freeze(self) -> None:
        for part in self.given_parts:
            part.requires_grad_(False)

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations for the gradient, by transformers' own means."""
        for part in (self.model.thinker, self.model.talker):
            part.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.gradient_checkpointing = True

    def take_off_adapters(self) -> dict[str, Any]:
        """Leave the layers beneath the adapters alone in the model; what is given stays frozen."""
        found = super().take_off_adapters()
        self._freeze()
        return found

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """The chat template's text, each clip as the audio tower's output; without a system turn, the makers' if they have one.

        The transcript of a user's clip is not read. Of an assistant's turn the words are read and not the sound, as
        the model remembers its own. What looks like a special token in somebody's words stays words.

        Raises:
            PolicyError: a turn without content, an assistant's clip without words, or a clip too short or too long.
        """
        if self.SYSTEM is not None and (not turns or turns[0].role != "system"):
            turns = [Turn("system", self.SYSTEM), *turns]
        begin, audio, end = (self.special[name] for name in self.audio_marks)
        ids: list[int] = []
        clips: list[np.ndarray] = []
        for turn in turns:
            ids.append(self.special[START])
            if turn.role == "user" and turn.clip is not None:
                samples = turn.clip.at(INPUT_RATE_HZ).samples
                places, duration_s = self.audio_places(len(samples)), turn.clip.duration_s
                if places < 1 or duration_s > MAX_CLIP_S:
                    raise PolicyError(f"a clip of {duration_s:.3f} s; {self.NAME} takes 0.03 s to {MAX_CLIP_S:.0f} s")
                clips.append(samples)
                ids += [*self._words("user\n"), begin, *[audio] * places, end]
            elif turn.text:
                ids += self._words(f"{turn.role}\n{turn.text}")
            else:
                raise PolicyError(f"the {turn.role}'s turn holds no words" + (", only sound" if turn.clip is not None else ""))
            ids += [self.special[END], *self._words("\n")]
        ids += [self.special[START], *self._words("assistant\n")]
        text = np.array(ids, dtype=np.int64)
        continuous = text == audio
        features = None
        if clips:
            vectors = self._audio_features(clips)
            features = np.zeros((len(text), vectors.shape[1]), dtype=vectors.dtype)
            features[continuous] = vectors
        return Prompt(np.zeros((len(text), 0), dtype=np.int64), text, features, continuous)

    def _words(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[Generation]:
        """Words, then sound; "eos" if both came to an end, and for an answer without sound if its words did."""
        check_request(prompts, group_size, sampling, seeds)
        self.model.eval()
        slots = tuple(slot.name for slot in self.spec.slots)
        at_once, found = max(1, ROWS_AT_ONCE // group_size), list[Generation]()
        for start in range(0, len(prompts), at_once):
            part = slice(start, start + at_once)
            uniforms = uniforms_of(seeds[part], sampling.max_steps, len(slots)).to(self.device)
            text, audio = self.model.sample(prompts[part], group_size, sampling, uniforms)
            complete = text.ended & (audio.ended | (audio.counts == 0))
            for number, group in enumerate(seeds[part]):
                rows = slice(number * group_size, (number + 1) * group_size)
                blocks = (pack(slots[:1], text, rows, [self.special[END]]), pack(slots[1:], audio, rows, self.audio_pad))
                finish = tuple("eos" if end else "length" for end in complete[rows].tolist())
                found.append(Generation(blocks, finish, tuple(group)))
        return found

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """The reply, without its end."""
        ids = takewhile(lambda number: number != self.special[END], blocks[0].tokens[answer, :, 0].tolist())
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def silence(self) -> Clip:
        """The sound of an answer without codes."""
        return Clip(np.zeros(0, dtype=np.float32), OUTPUT_RATE_HZ)

    def read_companions(self, folder: Path) -> None:
        """Keep a checkpoint's files that are neither weights nor tokenizer."""
        self.companions = {name: (folder / name).read_bytes() for name in COMPANIONS if (folder / name).is_file()}

    def write_companions(self, folder: Path) -> None:
        """Tokenizer and those files."""
        self.tokenizer.save_pretrained(str(folder))
        for name, content in self.companions.items():
            write_bytes(folder / name, content)
