"""A small thinker of the true class with random weights, and a tokenizer trained on the format's texts.

For machines without released weights: it shows that data, training and bench work together, and says nothing of quality.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paras2s.configs.schema.unisrm import ScratchConfig, ThinkerConfig
from paras2s.errors import ConfigError
from paras2s.reward.reward_model.omni import RATE_HZ
from paras2s.unisrm.reward.descriptions import REQUEST, read_descriptions
from paras2s.unisrm.reward.messages import chat_text
from paras2s.unisrm.reward.reply import write_reply
from paras2s.unisrm.reward.tasks import Item
from paras2s.unisrm.reward.thinker import ItemEncoder, UniSRM, instructions
from paras2s.unisrm.reward.train import trainable
from paras2s.utils.device import found_device

SPECIAL = (
    "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>",
)  # fmt: skip
HEAD_SIZE = 16
# Items whose clips the audio tower's first weights are fitted to.
FITTED_ITEMS = 100
LEAST_DEVIATION = 1e-3
# Half the frames of 10 ms that a token may hear: 4 s, so that pace and melody of a whole clip are within reach.
HALF_WINDOW_FRAMES = 200
# Lines of a prompt with more words are texts; their tokens span one word at most.
LONGEST_KEPT_WORDS = 2
WORD = re.compile(r" ?[^ ]+")
SPLIT_AT = re.compile("|".join(map(re.escape, SPECIAL)))


def thinker_from_scratch(config: ThinkerConfig, data: Path, items: Sequence[Item], seed: int = 0) -> UniSRM:
    """Make a model with random weights whose tokenizer knows the texts of `items`, and whose audio tower their sound.

    Raises:
        AudioError: a clip in the folder `data` cannot be read. ConfigError: `scratch` is not set, adapters are to be trained,
            which leave random weights as they are, or the data does not say how its clips sound where that is to be learned.
    """
    if config.scratch is None or config.trains != "all":
        raise ConfigError("thinker.scratch: random weights must all be trained; set thinker.trains to all")
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration

    texts = list(format_texts(config, items))
    if config.scratch.description_updates:
        texts += [f" {REQUEST}", *read_descriptions(data, items).values()]
    tokenizer = train_tokenizer(texts, config.scratch.vocabulary)
    torch.manual_seed(seed)
    thinker: Any = Qwen2_5OmniThinkerForConditionalGeneration(_network(config.scratch, tokenizer))
    model = UniSRM(thinker.to(found_device()), tokenizer, config)
    encoder = ItemEncoder(model, data, items[:: max(1, len(items) // FITTED_ITEMS)])
    clips = [clip for number in range(len(encoder.items)) for clip in encoder[number].clips]
    fit_frontend(thinker.model.audio_tower, torch.cat(clips, 1).to(model.device))
    return model


@torch.no_grad()
def fit_frontend(tower: Any, features: Tensor) -> None:
    """Set the convolutions of an audio tower to hear mel features [128, A]: each bin counts alike, and sound as much as place.

    The weights that transformers begins with (a deviation of 0.02) leave the sound far below the positions that are added to
    it, and what all clips have in common far above what they differ in: training then is deaf for long.
    """
    mean, deviation = features.mean(1), features.std(1).clamp_min(LEAST_DEVIATION)
    for layer in (tower.conv1, tower.conv2):
        torch.nn.init.normal_(layer.weight, std=(layer.in_channels * layer.kernel_size[0]) ** -0.5)
    tower.conv1.weight /= deviation[:, None]
    tower.conv1.bias.copy_(-(tower.conv1.weight * mean[:, None]).sum((1, 2)))


def format_texts(config: ThinkerConfig, items: Sequence[Item]) -> Iterator[str]:
    """Yield the tokenizer's training texts: replies, and prompts line by line, long lines as single words."""
    for item in trainable(items, config.reasoning):
        yield write_reply(item.task, item.record, config.reasoning)
    systems = instructions(config)
    for item in items:
        prompt = chat_text(item.task, systems[item.task], item.texts, dict.fromkeys(item.clips, RATE_HZ))
        for line in (line for part in SPLIT_AT.split(prompt) for line in part.splitlines(keepends=True)):
            words = WORD.findall(line)
            yield from [line] if len(words) <= LONGEST_KEPT_WORDS else words


def train_tokenizer(texts: Sequence[str], size: int) -> Any:
    """Train a BPE on texts; tokens of media and of turns are special, each digit, comma and blank line is a token of its own.

    Tokens may span words, so that a fixed phrase of the format is one token and replies are short enough for sampling on a CPU.
    They span no comma, so that an entry of a list is the same token in every list, and no blank line, so that no token holds
    two things that are heard.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    apart = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex(",|\n\n"), "isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence([*apart, byte_level])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=made, pad_token="<|endoftext|>", eos_token="<|im_end|>", clean_up_tokenization_spaces=False)


def _network(size: ScratchConfig, tokenizer: Any) -> Any:
    from transformers import Qwen2_5OmniThinkerConfig

    ids = {token: int(tokenizer.convert_tokens_to_ids(token)) for token in SPECIAL}
    heads = size.hidden_size // HEAD_SIZE
    config: Any = Qwen2_5OmniThinkerConfig
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    return config(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": size.hidden_size, "intermediate_size": 3 * size.hidden_size,
            "num_hidden_layers": size.layers, "num_attention_heads": heads, "num_key_value_heads": heads,
            "tie_word_embeddings": False, "rope_parameters": rope, "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        audio_config={
            "num_mel_bins": 128, "encoder_layers": size.audio_layers, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 2 * size.audio_size, "d_model": size.audio_size, "output_dim": size.hidden_size,
            "n_window": HALF_WINDOW_FRAMES, "max_source_positions": HALF_WINDOW_FRAMES,
        },
        # Never read, and as small as the class allows.
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": size.hidden_size,
            "fullatt_block_indexes": [0],
        },
        audio_token_index=ids["<|AUDIO|>"], image_token_index=ids["<|IMAGE|>"], video_token_index=ids["<|VIDEO|>"],
        audio_start_token_id=ids["<|audio_bos|>"], audio_end_token_id=ids["<|audio_eos|>"],
        vision_start_token_id=ids["<|vision_bos|>"], vision_end_token_id=ids["<|vision_eos|>"],
        eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"],
    )  # fmt: skip
