"""`EmbeddedPolicy`: the small dual-stream policy that is trained from random weights, with Codec 2 and word pieces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.audio.text_embedding import SENTENCE_DIM, WordPieces, embed_sentences, piece_embeddings
from paras2s.configs.schema.align import AugmentConfig
from paras2s.configs.schema.run import PolicyConfig
from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.config import SPECIAL_IDS, DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.policy import ADAPTOR, LORA_TARGETS, SHARDED, StreamPolicy
from paras2s.policy.embedded.augment import augment
from paras2s.policy.embedded.codec2 import Codec, Codec2Pairs
from paras2s.policy.embedded.features import FEATURE_DIM, FeatureNormalizer
from paras2s.policy.embedded.frontend import ClipFeatures, extract_features, stored_features
from paras2s.policy.types import ClipStore, PolicySpec, Prompt, Turn
from paras2s.policy.weights import load_tensors, shard_files, write_tensors
from paras2s.types import Block, Query
from paras2s.utils.io import read_json, write_json


def special_ids(pieces: int) -> dict[str, int]:
    """Return the ids of the special tokens behind `pieces` word pieces."""
    return {name: pieces + number for number, name in enumerate(SPECIAL_IDS)}


class EmbeddedPolicy(StreamPolicy):
    """Ids, prompts, answers and log-probs around one small `DualStreamLM`."""

    def __init__(self, model: DualStreamLM, pieces: WordPieces, codec: Codec, normalizer: FeatureNormalizer) -> None:
        config = model.dual_config
        if codec.cardinality != config.codebook_sizes:
            raise PolicyError(f"codebooks {config.codebook_sizes} do not fit the codec's {codec.cardinality}")
        self.model, self.pieces, self.codec, self.normalizer = model, pieces, codec, normalizer
        self.spec = PolicySpec(
            slots=self.slots(),
            step_rate_hz=codec.frame_rate_hz,
            input_rate_hz=16_000,
            output_rate_hz=codec.sample_rate_hz,
            lora_targets=LORA_TARGETS,
            adaptor_parameters=ADAPTOR,
            sharded=SHARDED,
            context_steps=None,
            code_format=Codec2Pairs.version,
        )

    @classmethod
    def create(cls, sizes: PolicyConfig, clips: ClipStore, questions: Sequence[str], seed: int) -> EmbeddedPolicy:
        """Make a new policy; its text embeddings start from a sentence model's token table."""
        codec = Codec2Pairs()
        normalizer = FeatureNormalizer.of_clips(clips, questions, codec)
        pieces = WordPieces.most_frequent(sizes.text_pieces)
        config = DualStreamConfig(
            hidden_size=sizes.hidden_size,
            intermediate_size=sizes.intermediate_size,
            num_layers=sizes.num_layers,
            tap_layer=sizes.tap_layer,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            rope_theta=10_000.0,
            text_vocab=len(pieces) + len(SPECIAL_IDS),
            codebook_sizes=codec.cardinality,
            audio_delay_steps=sizes.audio_delay_steps,
            continuous_dim=FEATURE_DIM,
            mask_invalid_ids=True,
            **special_ids(len(pieces)),
        )
        model = DualStreamLM(config)
        model.initialise(seed)
        rows = piece_embeddings(pieces.pieces)
        rows = rows - rows.mean(0)
        _, _, directions = np.linalg.svd(rows, full_matrices=False)
        projected = rows @ directions[: config.hidden_size].T
        projected = torch.from_numpy(projected * (0.02 / projected.std())).float()
        model.model.embed_tokens.weight.data[: len(pieces), : projected.shape[1]] = projected
        return cls(model, pieces, codec, normalizer)

    # -- prompts and targets ------------------------------------------------------------------------------------------

    def encode_prompt(self, turns: Sequence[Turn]) -> Prompt:
        """Encode a spoken question with its transcript. Raises PolicyError: anything else than a single question."""
        if len(turns) != 1 or turns[0].role != "user" or turns[0].clip is None:
            raise PolicyError("the embedded policy reads one spoken question, and no dialogue; give one user turn with a clip")
        return self.prompt_of(extract_features(turns[0].clip, self.codec), turns[0].text)

    def prompt_of(self, features: ClipFeatures, transcript: str) -> Prompt:
        """Kimi-Audio's prompt layout (docs/policies.md) with the transcript in the text stream (ParaS2S, section 4).

        user, media_begin, codes (continuous), media_end, "answer with both", msg_end, assistant.
        """
        config, codes = self.config, features.codes
        words = self.pieces.encode(transcript)
        # Words longer than the speech run on beside blanks; the streams have one length.
        steps = max(len(codes), len(words))
        speech = slice(2, 2 + len(codes))
        audio = np.full((steps + 6, config.num_codebooks), config.pad_id, dtype=np.int64)
        text = np.full(steps + 6, config.blank_id, dtype=np.int64)
        audio[[0, 1], 0] = config.user_id, config.media_begin_id
        audio[2 + len(codes) : 2 + steps, 0] = config.blank_id
        audio[2 + steps :, 0] = config.media_end_id, config.audio_and_text_id, config.msg_end_id, config.assistant_id
        audio[speech] = codes + np.asarray(config.codebook_offsets)
        text[2 : 2 + len(words)] = words
        continuous = np.zeros(steps + 6, dtype=bool)
        continuous[speech] = True
        continuous_features = np.zeros((steps + 6, FEATURE_DIM), dtype=np.float32)
        continuous_features[speech] = self.normalizer.features(features, transcript)
        hidden = config.blank_id, config.pad_id
        return Prompt(audio, text, continuous_features, continuous, SENTENCE_DIM, config.codebook_offsets, hidden)

    def encode_queries(self, clips: ClipStore, queries: Sequence[Query]) -> list[Prompt]:
        """Encode questions to prompts from the features stored beside their clips. Raises PolicyError: one has a history."""
        self.check_queries(Path(), queries)
        # One batch fills the sentence cache that `prompt_of` reads.
        embed_sentences([query.transcript for query in queries])
        return [self.prompt_of(stored_features(clips, query.clip, self.codec), query.transcript) for query in queries]

    @classmethod
    def check_queries(cls, folder: Path, queries: Sequence[Query]) -> None:
        """Check that no question has a history. Raises PolicyError: one has."""
        for query in queries:
            if query.history:
                raise PolicyError(
                    f"query {query.id} has a history, and the embedded policy reads one spoken question, and no dialogue; set "
                    "policy.weights to a model that reads dialogues (docs/policies.md), or take out histories.jsonl"
                )

    def encode_demonstrations(self, clips: ClipStore, answers: Sequence[tuple[str, str]]) -> list[tuple[Block, ...]]:
        """Make demonstrations from the codes stored beside their clips: decoding and encoding again would lose quality."""
        codes = [stored_features(clips, name, self.codec).codes for name, _ in answers]
        return [(self.target_block(own, self.pieces.encode(text)),) for own, (_, text) in zip(codes, answers, strict=True)]

    def encode_target(self, clip: Clip, text: str) -> tuple[Block, ...]:
        """Encode a demonstration as one block with G = 1."""
        return (self.target_block(self.codec.encode(clip), self.pieces.encode(text)),)

    def with_style(self, prompt: Prompt, words: str) -> Prompt:
        """See `Policy.with_style`; without `warmup.style_share` it makes nothing of the words."""
        try:
            return self.with_message(prompt, self.pieces.encode(words))
        except ValueError as error:
            raise PolicyError(f"policy.style_words: {words!r} cannot be spelled ({error}); use English words") from error

    @classmethod
    def augment_prompt(cls, prompt: Prompt, config: AugmentConfig, rng: np.random.Generator) -> Prompt:
        """See `augment.augment`."""
        return augment(prompt, config, rng)

    # -- answers ------------------------------------------------------------------------------------------------------

    def decode_audio(self, blocks: Sequence[Block], answer: int, seed: int) -> Clip:
        """Waveform of one answer; Codec 2 draws nothing."""
        return self.codec.decode(self.decode_codes(blocks, answer))

    @classmethod
    def load_speaker(cls, folder: Path, device: str = "cpu", decoder: Any = None) -> Codec2Pairs:
        """Codec 2."""
        return Codec2Pairs()

    def decode_text(self, blocks: Sequence[Block], answer: int) -> str:
        """Text stream of one answer, up to its end."""
        (block,) = blocks
        ids = block.tokens[answer, :, 0][block.sampled[answer, :, 0]]
        return self.pieces.decode([int(i) for i in ids if i < len(self.pieces)])

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write weights as safetensors, config, vocabulary and feature statistics, each atomically."""
        self.refuse_adapters()
        write_tensors(folder, self.model.state_dict())
        write_json(folder / "vocabulary.json", list(self.pieces.pieces))
        self.normalizer.save(folder / "listener.json")
        # Last, since a folder that has it counts as complete.
        config = self.config.model_dump(mode="json")
        write_json(folder / "policy.json", {"architecture": "DualStreamLM", "config": config})

    def reload(self, folder: Path) -> None:
        """Read weights alone."""
        load_tensors(self.model, shard_files(folder), str(folder))

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None, codec: Codec | None = None
    ) -> EmbeddedPolicy:
        """Read what `save` wrote. Raises DataError: a missing or broken file. PolicyError: weights that do not fit."""
        described = read_json(folder / "policy.json")
        architecture = described.get("architecture") if isinstance(described, dict) else None
        if architecture != "DualStreamLM":
            raise PolicyError(f"{folder}: holds a {architecture!r}, not a DualStreamLM; choose another")
        config = DualStreamConfig.read(described.get("config"), f"{folder}/policy.json")
        pieces = WordPieces(read_json(folder / "vocabulary.json"))
        if len(pieces) != config.text_eos_id:
            raise PolicyError(f"{folder}/vocabulary.json: {len(pieces)} pieces, the config wants {config.text_eos_id}")
        policy = cls(DualStreamLM(config), pieces, codec or Codec2Pairs(), FeatureNormalizer.load(folder / "listener.json"))
        policy.reload(folder)
        policy.model.to(device, dtype)
        return policy
