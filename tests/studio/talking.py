"""A run with two tiny policies to talk to, and a judge that needs no measurement; the folder's name has a space."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from outside import LIBRISPEECH
from studio.world import HOSTILE, tone

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.configs.schema.base import dump_config
from paras2s.configs.schema.run import PolicyConfig, RunConfig
from paras2s.data_gen.dataset import save_tables
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.reward.judges.base import Exchange, Judge, Progress, Scored
from paras2s.types import Query, Unscored, Verdict
from paras2s.utils.io import write_bytes, write_text

SIZES = PolicyConfig(
    hidden_size=32, intermediate_size=48, num_layers=2, tap_layer=0, num_heads=4, num_kv_heads=2, text_pieces=200,
    max_answer_steps=14,
)  # fmt: skip


@functools.cache
def speech() -> Clip:
    """Two seconds of a person."""
    clip = read_clip(LIBRISPEECH / "librispeech_1263-139804-0001.flac")
    return Clip(clip.samples[: 2 * clip.sample_rate_hz], clip.sample_rate_hz)


class OneClip:
    """A dataset's clips, where there is one."""

    def clip(self, name: str) -> Clip:
        return speech()

    def cached_features(self, name: str) -> None:
        return None


class StyleJudge(Judge):
    """Scores a question with a style; its reason is hostile."""

    name, version, scores_alone = "style judge", "1", True

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        return [
            Verdict(self.name, "1", "", 4.0, HOSTILE, "", 0.0, 0.1)
            if exchange.question.style
            else Unscored(self.name, "no style was said")
            for exchange in exchanges
        ]


JUDGE = "studio.talking:StyleJudge"


def make_talking_run(folder: Path, *names: str) -> Path:
    """A run with policies of these names, and one labelled test question in two styles."""
    write_text(folder / "config.resolved.yaml", dump_config(RunConfig(run_dir=folder)))
    for seed, name in enumerate(names):
        EmbeddedPolicy.create(SIZES, OneClip(), ["one"], seed).save(folder / name)
    queries = [
        Query(f"t {style}", "c 1", "age", None, "test", "", f"queries/{style}.wav", 0.5, HOSTILE, HOSTILE, style)
        for style in ("child", "adult")
    ]
    for query in queries:
        write_bytes(folder / "data" / query.clip, encode_clip(tone(hz=300)))
    save_tables(folder / "data", queries, [], [])
    return folder
