"""`Policy`: the interface of a speech-to-speech model to training, rollouts and benchmarks.

A policy of another package is a subclass with an entry point in the group `paras2s.policies`; `paras2s check-policy` runs
the contract against it.
Alphabet: B prompts, G answers a prompt, N answers in all, T steps, S slots, K codebooks.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.configs.schema.align import AugmentConfig
from paras2s.configs.schema.run import PolicyConfig
from paras2s.errors import PolicyError
from paras2s.policy.types import (
    Alteration,
    Answer,
    ClipStore,
    Generation,
    PolicySpec,
    Prompt,
    SampleRequest,
    Sampling,
    SamplingEvent,
    Speaker,
    Turn,
    turns_of,
)
from paras2s.policy.weights import shard_files, stored_shapes
from paras2s.types import Block, Query

NO_ENCODER = (
    "{} cannot learn from recorded speech: the encoder of its audio codes was never released; set warmup.steps to 0, or warm "
    "it up on its own best answers"
)


class CausalDecoder(Protocol):
    """A single-stream policy as an inference engine sees it: a causal decoder of transformers that samples one id a step."""

    @property
    def first_audio(self) -> int:
        """Ids from here on are audio codes."""

    @property
    def pad_id(self) -> int:
        """Id behind the end of an answer."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end an answer."""

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""

    def export_hf(self, folder: Path) -> None:
        """Write the decoder as a checkpoint of transformers, without tokenizer and audio encoder."""

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield its weights under the names of transformers, adapters folded in."""

    def embed_prompt(self, prompt: Prompt) -> np.ndarray | None:
        """Return a prompt's input embeddings [L, d], or None for a prompt of ids alone."""


class _AdapterMatrix(nn.Linear):
    """A matrix of an adapter, held in float32 and multiplied in its input's precision: peft would copy the input instead.

    On an H200 the copies, float32 products and sums took up to half of an update's time on the device (docs/gpu.md).
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., r], or back."""
        return nn.functional.linear(x, self.weight.to(x.dtype))


class Policy(ABC):
    """A speech-to-speech model that can be trained by reinforcement learning.

    `model` is the network, under the released checkpoint's parameter names. Its forward is the teacher-forced pass,
    `model(prompts, answers, sampling)`, so that a wrapper such as FSDP sees one call. It reads every module of `spec.sharded`
    equally often whatever the answers are, up to 32 of them: ranks that gather layer by layer would else wait forever.
    """

    spec: PolicySpec
    model: nn.Module
    frozen: nn.Module | None = None
    # How it answers where nothing else is said; of a checkpoint, what `policy/answers.py` reads.
    sampling: Sampling = Sampling()
    # Answers, those of like length, whose sound `decode_audios` makes in one batch.
    spoken_at_once: ClassVar[int] = 1
    # Whether several threads may pass the model at once: nothing of a pass is kept in it.
    passes_in_threads: ClassVar[bool] = False

    # -- abstract ------------------------------------------------------------------------------

    @abstractmethod
    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode a dialogue as the model reads it, up to where its answer begins."""

    @abstractmethod
    def generate(self, request: SampleRequest) -> list[Generation]:
        """Sample G answers for each prompt, from one prefill a prompt.

        An answer depends on its prompt and its own seed, and on nothing else in the batch.
        """

    @abstractmethod
    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Codec codes [T, K] of one answer, from 0, without delay and end; T = 0 for an answer without sound."""

    @abstractmethod
    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform of one answer, empty for an empty one; a decoder that draws noise draws it from `seed`."""

    def decode_audios(self, answers: Sequence[tuple[Sequence[Block], int, int]]) -> list[Clip]:
        """Decode several answers (blocks, answer, seed) to waveforms, in order, many at once if the decoder can."""
        return [self.decode_audio(*answer) for answer in answers]

    @abstractmethod
    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Decode the text of one answer."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a checkpoint that `load` reads; a released model's has the released names and layout."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> Policy:
        """Read a checkpoint; `dtype` None: the one it is stored in.

        Raises:
            PolicyError: tensors or config do not fit, by name.
        """

    @abstractmethod
    def reload(self, folder: Path) -> None:
        """Fill the model's weights from a checkpoint of this policy, and nothing else."""

    # -- with a default that a policy may replace ----------------------------------------------------------------------------

    @classmethod
    def create(cls, sizes: PolicyConfig, clips: ClipStore, questions: Sequence[str], seed: int) -> Policy:
        """Make a new policy with random weights; `questions` names the training questions' clips, for feature statistics.

        Raises:
            PolicyError: this policy exists as released weights only.
        """
        raise PolicyError(f"{cls.__name__} is not trained from random weights; set policy.weights to a released checkpoint")

    @classmethod
    def load_speaker(cls, folder: Path, device: str = "cpu", decoder: Any = None) -> Speaker:
        """Open what makes sound of a checkpoint's codes, without its other weights; `decoder` is `policy.decoder`'s object.

        Raises:
            PolicyError: this policy's sound cannot be made apart from it.
        """
        raise PolicyError(
            f"align.workers.speak: {cls.__name__} makes its sound with its own network; leave the role out, and rollout "
            "workers speak"
        )

    def generate_in_parts(
        self, request: SampleRequest, report_every: int | None
    ) -> Generator[SamplingEvent, None, list[Generation]]:
        """Sample as `generate` does, and report the answers so far each time `report_every` more of them have ended.

        A policy whose sampler cannot report reports nothing.
        """
        yield from ()
        return self.generate(request)

    def encode_queries(self, clips: ClipStore, queries: Sequence[Query]) -> list[Prompt]:
        """Encode spoken questions to prompts, in order, from clip and transcript, behind their histories.

        Raises:
            PolicyError: this policy does not read such a history.
        """
        return [self.encode_prompt(turns_of(clips, query)) for query in queries]

    def encode_demonstrations(self, clips: ClipStore, answers: Sequence[tuple[str, str]]) -> list[tuple[Block, ...]]:
        """Encode recorded demonstrations (clip's name, text) as the blocks the model should have sampled, in order."""
        return [self.encode_target(clips.clip(name), text) for name, text in answers]

    def causal_decoder(self) -> CausalDecoder | None:
        """Return the network for an engine such as vLLM, or None if it samples more than one plain stream."""
        return None

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Encode a demonstration as the blocks that the model should have sampled (G = 1).

        Raises:
            PolicyError: no encoder of its speech was released; warm it up on answers that it sampled itself.
        """
        raise PolicyError(NO_ENCODER.format(type(self).__name__))

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        """Compare the files of a checkpoint with each other without loading weights; by default the weights are whole files.

        Raises:
            PolicyError: they do not fit each other; they are named.
        """
        stored_shapes(shard_files(folder))

    @classmethod
    def check_warmup(cls, folder: Path) -> None:
        """Check that what a checkpoint's warm-up needs besides is there.

        Raises:
            PolicyError: it is not, or there is no encoder of recorded speech.
        """
        if cls.encode_target is Policy.encode_target:
            raise PolicyError(NO_ENCODER.format(cls.__name__))

    @classmethod
    def check_queries(cls, folder: Path, queries: Sequence[Query]) -> None:
        """Check that a checkpoint's folder has what its prompts for these questions need; by default nothing is needed.

        Raises:
            PolicyError: it has not.
        """
        return None

    @classmethod
    def augment_prompt(cls, prompt: Prompt, config: AugmentConfig, rng: np.random.Generator) -> Prompt:
        """Return a prompt with noise added for training, unchanged by default. It needs no weights: the driver has none."""
        return prompt

    def with_style(self, prompt: Prompt, words: str) -> Prompt:
        """Return a prompt that also says in words how the question was said, such as "in a sad voice", before its sound.

        Raises:
            PolicyError: this policy's prompts have no text.
        """
        raise PolicyError(
            f"{type(self).__name__} cannot be told a question's style: its prompts have no text; leave out "
            "align.self_distill, warmup.style_share and the reward source self_contrast"
        )

    def use_transcript(self) -> None:
        """Put a question's transcript into the text stream beside its sound from now on.

        Raises:
            PolicyError: this policy has no place for it, or always reads it.
        """
        raise PolicyError(f"policy.transcript_in_prompt: is for Kimi-Audio, and this is {type(self).__name__}; leave it out")

    def answer_logits(self, prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
        """Return logits [T, n] of each slot of one answer (G = 1), at least float32, to compare with the makers'.

        Raises:
            PolicyError: this policy does not offer them.
        """
        raise PolicyError(f"{type(self).__name__} offers no logits, only log-probs of given tokens")

    def alterations(self) -> list[Alteration]:
        """Return settings that `check-policy --pairs` tries beside the checkpoint's own; none by default."""
        return []

    # -- the same for all -------------------------------------------------------------------------------------

    def answer(self, question: Clip, transcript: str | None = None, seed: int = 0, sampling: Sampling | None = None) -> Answer:
        """Answer one spoken question; ASR transcribes the question where no transcript is given.

        The same seed gives the same answer.

        Raises:
            PolicyError: the question does not fit the policy. AssetError: ASR is not installed and no transcript is given.
        """
        if transcript is None:
            from paras2s.audio.asr import transcribe

            transcript = transcribe([question])[0].text
        prompt = self.encode_prompt([Turn("user", transcript, question)])
        blocks = self.generate(SampleRequest([prompt], [[seed]], sampling or self.sampling))[0].blocks
        return Answer(self.decode_text(blocks, 0), self.decode_audio(blocks, 0, seed))

    def logprobs(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor, ...]:
        """Teacher-forced log-probs, differentiable: one tensor [N, T, S] for each of an answer's blocks.

        `answers` [B] holds each prompt's blocks, G answers in each. N counts all answers in order, T is the longest block's;
        0 where not sampled.
        """
        return tuple(self.model(prompts, answers, sampling))

    @property
    def final_ids(self) -> dict[str, tuple[int, ...]]:
        """Ids that end an answer, by slot; {}: no single id does."""
        return {}

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @contextmanager
    def full_gradient(self) -> Iterator[None]:
        """Inside, gradients also pass where this policy holds them back by choice; by default it holds none back."""
        yield

    def freeze_reference(self) -> None:
        """Copy the present weights as the reference, for training without LoRA."""
        self.frozen = copy.deepcopy(self.model).requires_grad_(False).eval()

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, the policy is the one from before training: adapters off if there are any, else the frozen copy.

        Raises:
            PolicyError: neither adapters nor `freeze_reference`.
        """
        if adapters := self.adapters:
            for layer in adapters:
                layer.enable_adapters(False)
            try:
                yield
            finally:
                for layer in adapters:
                    layer.enable_adapters(True)
        elif self.frozen is not None:
            trained, self.model = self.model, self.frozen
            try:
                yield
            finally:
                self.model = trained
        else:
            raise PolicyError("no reference: call freeze_reference() or add_lora() before training")

    @property
    def adapters(self) -> list[Any]:
        """Modules that carry LoRA matrices."""
        return [module for module in self.model.modules() if hasattr(module, "lora_A")]

    def add_lora(self, rank: int, alpha: int) -> None:
        """Put LoRA matrices on every module of `spec.lora_targets` and freeze everything else.

        The matrices are float32 at least (see `widen_trainable`), whatever the weights beneath them are.
        """
        from peft import LoraConfig, inject_adapter_in_model

        # peft freezes what is not an adapter, and matches a pattern against the whole name.
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=self.spec.lora_targets), self.model)
        for layer in self.adapters:
            matrices = (*layer.lora_A.values(), *layer.lora_B.values())
            if all(type(matrix) is nn.Linear for matrix in matrices):
                layer.cast_input_dtype_enabled = False
                for matrix in matrices:
                    matrix.__class__ = _AdapterMatrix
        self.widen_trainable()

    def widen_trainable(self) -> None:
        """Make float32 what learns and is half precision: adapters where there are any, else the full model.

        bfloat16 keeps 8 bits, so an update of less than 1/512 of a weight would be rounded away.
        """
        learning = self.trainable() if self.adapters else self._tensors()
        for name, value in learning.items():
            if value.dtype in (torch.bfloat16, torch.float16):
                self._stored_dtypes[name] = value.dtype
                value.data = value.data.float()

    def narrow_trained(self) -> None:
        """Undo `widen_trainable`: what is written has the precision it was read in."""
        for name, value in self._tensors().items():
            value.data = value.data.to(self._stored_dtypes.get(name, value.dtype))
        self._stored_dtypes.clear()

    @cached_property
    def _stored_dtypes(self) -> dict[str, torch.dtype]:
        """Precision before `widen_trainable` of the tensors that it changed."""
        return {}

    def _tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers, also those that no checkpoint holds."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def merge_lora(self) -> None:
        """Fold the LoRA matrices into the weights and restore the original parameter names."""
        for layer in self.take_off_adapters().values():
            layer.merge()

    def take_off_adapters(self) -> dict[str, Any]:
        """Leave the layers beneath the adapters alone in the model, unchanged; return the adapters by their layers' names."""
        adapted = {name: module for name, module in self.model.named_modules() if hasattr(module, "lora_A")}
        for name, module in adapted.items():
            parent, _, child = name.rpartition(".")
            setattr(self.model.get_submodule(parent), child, module.get_base_layer())
        # peft leaves its settings behind, and would take the next adapters for a second set.
        if hasattr(self.model, "peft_config"):
            del self.model.peft_config
        self.model.requires_grad_(True)
        return adapted

    def refuse_adapters(self) -> None:
        """Check before `save`: a checkpoint holds the original parameter names.

        Raises:
            PolicyError: there are adapters.
        """
        if self.adapters:
            raise PolicyError("merge_lora() before save(): a checkpoint holds the original parameter names")

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations in the backward pass from now on.

        Raises:
            PolicyError: this policy cannot.
        """
        if not hasattr(self.model, "gradient_checkpointing"):
            raise PolicyError(f"{type(self).__name__} cannot recompute activations; set gradient_checkpointing to false")
        setattr(self.model, "gradient_checkpointing", True)  # noqa: B010 - not every model has it

    def trainable(self) -> dict[str, Tensor]:
        """Return the parameters that learn, by name."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}


def flat(parts: Sequence[Tensor]) -> Tensor:
    """Join the log-probs of each block [N, T, S] side by side, [N, M]."""
    return torch.cat([part.flatten(1) for part in parts], 1)
