"""The common part of Qwen2.5-Omni and Qwen3-Omni: a thinker writes a reply, then a talker speaks it.

Prompts by the chat template, the thinker's part of sampling, towers that do not learn, names in a checkpoint.
Alphabet: B prompts, G answers a prompt, N answers, L prompt tokens, T steps, S slots, H the thinker's width, V ids.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream.sampler import uniforms_of
from paras2s.policy.streams import Drawn, Reading, drawn_by, logits_of, one_of, pack, roll
from paras2s.policy.types import Generation, Prompt, SampleRequest, Sampling, Turn, style_sentence, with_words
from paras2s.policy.weights import open_tensors, shard_files, write_tensors
from paras2s.types import Block
from paras2s.utils.io import write_bytes, write_json

INPUT_RATE_HZ, OUTPUT_RATE_HZ = 16_000, 24_000
# Samples a mel frame, and the longest clip (released `preprocessor_config.json`).
HOP, MAX_CLIP_S = 160, 300.0
START, END = "<|im_start|>", "<|im_end|>"
# Read and written as they are, so that a checkpoint of ours is readable by other programs.
COMPANIONS = ("generation_config.json", "preprocessor_config.json", "chat_template.json", "chat_template.jinja")
THINKER_NORM = "thinker.model.norm.weight"
# Answers under way at once.
ROWS_AT_ONCE = 64


def replies_of(block: Block, end: int) -> np.ndarray:
    """Number of words spoken of each answer [G]: all but the last token, which the thinker never read.

    A reply ends with its first `end` (which also pads), or with its block. The `sampled` mask is not read: a learner that
    masks words out does not change what the sound was conditioned on.
    """
    ends = block.tokens[:, :, 0] == end
    return np.where(ends.any(1), ends.argmax(1), ends.shape[1] - 1)


def stored_name(name: str) -> str:
    """Return a parameter's name in a checkpoint: as released, which transformers writes but does not name its modules by."""
    name = re.sub(r"^thinker\.model\.(audio_tower|visual)\.", r"thinker.\1.", name)
    return name.replace("thinker.model.language_model.", "thinker.model.", 1)


def thinker_dtype(folder: Path) -> torch.dtype:
    """Return the precision of a checkpoint's thinker; its vocoder's may be another.

    Raises:
        PolicyError: there is no thinker.
    """
    for path in shard_files(folder):
        with open_tensors(path) as held:
            if THINKER_NORM in held.keys():  # noqa: SIM118 - a safetensors file is no mapping
                return held.get_tensor(THINKER_NORM).dtype
    raise PolicyError(f"{folder}: {THINKER_NORM} is missing; this is no Omni model")


# -- the parts --------------------------------------------------------------------------------------------------------


class OmniNetwork(nn.Module):
    """Thinker and talker under transformers' names; forward is the teacher-forced pass.

    `talker_gradient`: whether the sound's gradient reaches the thinker through what the talker is given of it. Off by default:
    an answer has hundreds of codes and tens of words, so a bad voice would be fixed by changing the words. The sound is
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
        """Return the thinker's embedding of ids [...]: [..., H]."""
        return self.thinker.model.language_model.embed_tokens(tokens)

    def codec_logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V] in which what is neither code nor end has no probability."""
        return self.talker.codec_head(hidden).masked_fill(self.forbidden, float("-inf"))

    def given(self, state: Tensor) -> Tensor:
        """Return a state of the thinker, as the talker is given it."""
        return state if self.talker_gradient else state.detach()

    def read(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the thinker's input [B, L, H], where it is sound [B, L], and lengths [B]; padded on the right."""
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
        """Draw all replies, `uniforms` [N, T]; `keep` is given each step's rows [n], and state plus input of its word."""
        everyone = torch.arange(len(uniforms), device=self.device)
        state = reading.states[everyone // (len(everyone) // len(reading.states)), reading.lengths - 1]

        def next_word(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            embedded = self.words(tokens[:, 0])
            fed = reading.feed(embedded)
            if keep is not None:
                keep(rows, fed + embedded)
            return fed

        draw = drawn_by(self.thinker.lm_head, sampling.text_temperature, sampling.text_top_k)
        return roll(reading, state, everyone, uniforms[..., None], draw, next_word, one_of((self.end,)))

    @abstractmethod
    def sample(self, request: SampleRequest, uniforms: Tensor) -> tuple[Drawn, Drawn]:
        """Sample words and sound of N answers from one prefill a prompt; `uniforms` [N, T, 1 + audio slots]."""


class OmniPolicy(Policy):
    """Prompts and answers of both families: words up to and including `<|im_end|>`, then sound with a clock of its own."""

    NAME: ClassVar[str]
    # The released model's class in transformers, and its vocoder.
    ARCHITECTURE: ClassVar[str]
    VOCODER: ClassVar[str]
    # The system's turn of a dialogue that comes without one.
    SYSTEM: ClassVar[str | None]

    config: Any
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
        """Return the number of placeholders of a clip of *n* samples at 16 kHz; 0 for a clip that is too short."""

    @abstractmethod
    def _audio_features(self, clips: Sequence[np.ndarray]) -> np.ndarray:
        """Return the audio tower's output for all clips in order [n, H]."""

    @property
    @abstractmethod
    def audio_pad(self) -> tuple[int, ...]:
        """Ids behind the end of an answer's sound, one a slot."""

    @property
    def given_parts(self) -> tuple[nn.Module, ...]:
        """Towers, which run when a prompt is encoded and never again, and the vocoder: none of them learns."""
        thinker = self.model.thinker.model
        return thinker.audio_tower, thinker.visual, getattr(self.model, self.VOCODER)

    def _freeze(self) -> None:
        for part in self.given_parts:
            part.requires_grad_(False)

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations for the gradient, by transformers' own means."""
        for part in (self.model.thinker, self.model.talker):
            part.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.gradient_checkpointing = True

    @contextmanager
    def full_gradient(self) -> Iterator[None]:
        """Inside, the sound's gradient reaches the thinker."""
        held, self.model.talker_gradient = self.model.talker_gradient, True
        try:
            yield
        finally:
            self.model.talker_gradient = held

    def take_off_adapters(self) -> dict[str, Any]:
        """Leave the layers beneath the adapters alone in the model; what is given stays frozen."""
        adapters = super().take_off_adapters()
        self._freeze()
        return adapters

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode the chat template's text, each clip as the audio tower's output; without a system turn, the makers', if any.

        The transcript of a user's clip is not read. Of an assistant's turn the words are read and not the sound, as
        the model remembers its own. What looks like a special token in a speaker's words stays words.

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

    def with_style(self, prompt: Prompt, words: str) -> Prompt:
        """See `Policy.with_style`: words before the sound of the last turn."""
        sound = int(np.flatnonzero(prompt.text_ids == self.special[self.audio_marks[0]])[-1])
        return with_words(prompt, sound, self._words(style_sentence(words)))

    def _words(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def generate(self, request: SampleRequest) -> list[Generation]:
        """Sample words, then sound; "eos" if both came to an end, and for an answer without sound if its words did."""
        self.model.eval()
        slots = tuple(slot.name for slot in self.spec.slots)
        generations = list[Generation]()
        for part in request.parts(ROWS_AT_ONCE):
            uniforms = uniforms_of(part.seeds, part.sampling.max_steps, len(slots)).to(self.device)
            text, audio = self.model.sample(part, uniforms)
            complete = text.ended & (audio.ended | (audio.counts == 0))
            for number, group in enumerate(part.seeds):
                rows = slice(number * len(group), (number + 1) * len(group))
                blocks = (pack(slots[:1], text, rows, [self.special[END]]), pack(slots[1:], audio, rows, self.audio_pad))
                finish = tuple("eos" if end else "length" for end in complete[rows].tolist())
                generations.append(Generation(blocks, finish, tuple(group)))
        return generations

    def answer_logits(self, prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
        """See `streams.logits_of`; ids that are neither code nor end have logits too."""
        predictor = getattr(self.model.talker, "code_predictor", None)
        later = () if predictor is None else tuple(predictor.lm_head)
        return logits_of(self.model, (self.model.thinker.lm_head, self.model.talker.codec_head, *later), prompt, blocks)

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Decode the reply, without its end."""
        ids = takewhile(lambda number: number != self.special[END], blocks[0].tokens[answer, :, 0].tolist())
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def silence(self) -> Clip:
        """Return the sound of an answer without codes."""
        return Clip(np.zeros(0, dtype=np.float32), OUTPUT_RATE_HZ)

    @abstractmethod
    def released_tensors(self) -> dict[str, Tensor]:
        """Return the model's tensors under their released names."""

    def save(self, folder: Path) -> None:
        """Write the released layout: tensors, tokenizer, and the files read beside them; `config.json` comes last."""
        self.refuse_adapters()
        write_tensors(folder, self.released_tensors())
        self.tokenizer.save_pretrained(str(folder))
        for name, content in self.companions.items():
            write_bytes(folder / name, content)
        dtype = str(self.model.thinker.lm_head.weight.dtype).removeprefix("torch.")
        described = {**self.config.to_dict(), "architectures": [self.ARCHITECTURE], "dtype": dtype}
        write_json(folder / "config.json", described)

    def restore(self, folder: Path, device: str) -> None:
        """Read weights, and a checkpoint's files that are neither weights nor tokenizer; then go to the device."""
        self.reload(folder)
        self.companions |= {name: (folder / name).read_bytes() for name in COMPANIONS if (folder / name).is_file()}
        self.model.to(device)

    @classmethod
    def empty_model(cls, config: Any, dtype: torch.dtype) -> Any:
        """Make the released model without weights: `dtype`, but the vocoder and what is computed from the config in float32.

        `Module.to(dtype)` would also round the rotary frequencies; a model made in bfloat16 has its vocoder's filters in it.
        """
        import transformers
        from transformers.initialization import no_init_weights
        from transformers.modeling_utils import local_torch_dtype

        with no_init_weights():
            with local_torch_dtype(dtype):
                released: Any = getattr(transformers, cls.ARCHITECTURE)(config)
            # A model without a talker has none; whoever reads it says so.
            if released.has_talker:
                vocoder = type(getattr(released, cls.VOCODER))
                setattr(released, cls.VOCODER, vocoder(getattr(config, f"{cls.VOCODER}_config")))
        return released.eval()
