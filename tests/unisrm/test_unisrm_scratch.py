"""The tokenizer of a thinker that begins with random weights.

Not covered: its network and its first weights, which test_unisrm_audio_pretraining.py has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny.unisrm import tiny_items

from paras2s.configs.schema.unisrm import ScratchConfig, ThinkerConfig
from paras2s.unisrm.reward.reply import write_reply
from paras2s.unisrm.reward.scratch import format_texts, train_tokenizer

CONFIG = ThinkerConfig(trains="all", scratch=ScratchConfig())


def tokens(tokenizer: Any, text: str) -> list[str]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    return [tokenizer.decode([number]) for number in ids]


def test_a_member_of_a_list_is_the_same_token_in_every_list_and_each_digit_stands_alone() -> None:
    texts = [f"{first}, {second}; score=10" for first in ("all words", "agrees") for second in ("sad", "calm after sad")]
    tokenizer = train_tokenizer(texts * 50, 320)
    assert tokens(tokenizer, "all words, sad; score=10") == ["all words", ",", " sad; score=", "1", "0"]
    assert tokens(tokenizer, "agrees, calm after sad; score=10") == ["agrees", ",", " calm after sad; score=", "1", "0"]


def test_no_token_holds_what_is_heard_on_both_sides_of_a_blank_line() -> None:
    texts = [f"clear, {tone}\n\nThe pace is {pace}." for tone in ("bright", "muffled") for pace in ("fitting", "slow")]
    tokenizer = train_tokenizer(texts * 50, 400)
    assert tokens(tokenizer, texts[0]) == ["clear", ",", " bright", "\n\n", "The pace is fitting."]


def test_lines_of_a_prompt_are_kept_and_texts_fall_into_words(tmp_path: Path) -> None:
    item = next(item for item in tiny_items(tmp_path) if item.task == "T3")
    texts = {**item.texts, "target_emotion": "sad", "scenario_description": "Nobody came back."}
    reply, *prompt = format_texts(CONFIG, [replace(item, texts=texts)])
    assert reply == write_reply("T3", item.record)
    for lines in (["<data target_emotion>\n", '"sad"\n', "</data>\n"], ['"Nobody', " came", ' back."\n']):
        start = prompt.index(lines[0])
        assert prompt[start : start + 3] == lines
    assert "[Speech A]\n" in prompt
    assert not any("<|" in line for line in prompt)
