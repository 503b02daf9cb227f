"""The audio judge against a real OpenAI-compatible server: vLLM with a tiny random Qwen2-Audio that hears the clips.

Not covered: a model that judges well. Its weights are random, so its verdicts are noise: that they are verdicts at all is
vLLM's structured output, and that the server decodes and counts what we send is what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.vllm_server import vllm_python, vllm_server

from paras2s.audio.clip import Clip
from paras2s.clients.chat import LLMClient
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.reward.judges.audio_judge.concatenation import ToneSignals
from paras2s.reward.judges.audio_judge.few_shot import Example
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.types import Preference, Unscored, Verdict

RATE_HZ = 16_000
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"]
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}{% if 'text' in c %}{{ c['text'] }}
{% else %}<|audio_bos|><|AUDIO|><|audio_eos|>
{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
# Qwen2-Audio hears 25 vectors a second.
VECTORS_PER_S = 25


pytestmark = pytest.mark.skipif(vllm_python() is None, reason="no .venv-vllm beside the package (make vllm-env)")


def save_tiny(folder: Path) -> None:
    """A random Qwen2-Audio of the released architecture, over bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        WhisperFeatureExtractor,
    )

    letters = Tokenizer(
        models.BPE(vocab={one: n for n, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": SPECIAL}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, **named)
    text: dict[str, Any] = {
        "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 16_384,
    }  # fmt: skip
    encoder = {
        "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 128,
    }  # fmt: skip
    torch.manual_seed(0)
    config = Qwen2AudioConfig(
        audio_config=encoder, text_config=text, audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    )
    Qwen2AudioForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Qwen2AudioProcessor(WhisperFeatureExtractor(feature_size=128), tokenizer, chat_template=TEMPLATE).save_pretrained(folder)


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("qwen2-audio")
    save_tiny(folder)
    more = ["--max-model-len", 8000, "--limit-mm-per-prompt", '{"audio": 9}']
    with vllm_server(folder, "tiny", more) as url:
        yield url


def hum(length_s: float, seed: int) -> Clip:
    return Clip((0.1 * np.random.default_rng(seed).standard_normal(round(length_s * RATE_HZ))).astype(np.float32), RATE_HZ)


PAIR = Pair(Utterance(hum(1.0, 1)), hum(2.0, 2), hum(3.0, 3))
EXAMPLES = [
    Example(f"e:{n}", (hum(1.0, 10 + n), hum(1.0, 20 + n)), Utterance(hum(1.0, 30 + n)), {}, label, "clear")
    for n, label in enumerate(("1", "2"))
]


def judge_at(base_url: str, task: str, **values: Any) -> AudioJudge:
    llm = {
        "base_url": base_url, "model": "tiny", "max_attempts": 1, "temperature": 1.0, "max_output_tokens": 3000,
    }  # fmt: skip
    shown = EXAMPLES if values.get("examples") else []
    config = AudioJudgeConfig.model_validate({"llm": llm | values.pop("llm", {}), "signals": "tone", **values})
    return AudioJudge(config, task, LLMClient(config.llm), ToneSignals(RATE_HZ), shown)


@pytest.mark.parametrize("strategy", ["none", "pair_example", "examples", "test", "examples_and_test"])
def test_a_real_server_receives_every_strategy(base_url: str, strategy: str) -> None:
    judge = judge_at(base_url, "lexical", strategy=strategy, examples="e.jsonl", both_orders=False)
    found = judge.compare_batch([PAIR])[0]
    assert isinstance(found, Preference), found
    assert found.label in ("1", "2", "tie")
    # The server counts the vectors it heard among the prompt's tokens: a byte is a token, so what is over is sound.
    requests = judge.judge_requests([PAIR])[0]
    assert not isinstance(requests, Unscored)
    written = sum(len(part.encode()) for message in requests[0].messages for part in message.parts if isinstance(part, str))
    transcribed_s = sum(marks[-1].end_s for marks in requests[0].marks)
    over = found.text_in_tokens + found.audio_in_tokens - written
    assert transcribed_s * VECTORS_PER_S == pytest.approx(over, abs=40 + 12 * len(requests[0].messages))


@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "ogg"])
def test_it_takes_every_format(base_url: str, format: str) -> None:
    judge = judge_at(base_url, "pronunciation", both_orders=False, audio={"format": format})
    found = judge.compare_batch([Pair(Utterance(), PAIR.first, PAIR.second)])[0]
    assert isinstance(found, Preference), found
    assert found.label in ("same", "different")


def test_samples_are_replies_of_their_own(base_url: str) -> None:
    # Without a seed: vLLM's CPU build of this version dies of one that meets another temperature than 0 in some batches.
    found = judge_at(base_url, "mos", samples=5).score_batch([Exchange(Utterance(), PAIR.first)])[0]
    assert isinstance(found, Verdict), found
    assert len(found.votes) == 5
    assert len(set(found.reply.split("\n---\n"))) == 5


def test_too_many_recordings_are_unscored_with_the_servers_words(base_url: str) -> None:
    judge = judge_at(base_url, "lexical", both_orders=False, examples="e.jsonl")
    judge._builder._opening *= 2
    found = judge.compare_batch([PAIR])[0]
    assert isinstance(found, Unscored)
    assert "At most 9 audio" in found.reason
