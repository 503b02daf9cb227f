"""A run's folder in miniature: Piper's speech, two tone classifiers that know nothing, and a policy that has hardly learned.

For tests of what comes after the data: everything is the true class, and small.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from paras2s.audio.clip import read_clip
from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.dataset import Dataset, save_dataset
from paras2s.data_gen.scripted.build import load_contrasts, load_families
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES, SPEAKERS, USER_STYLES
from paras2s.data_gen.tts.render import Take, render
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import CATEGORIES, Candidate, Demonstration, Query, Role

ROLES: tuple[Role, ...] = ("demonstration", "preference", "test")


def invoke(*words: object, status: int = 0) -> Any:
    """The command line within this process, which ends with `status`; what it raises is raised."""
    from typer.testing import CliRunner

    from paras2s.cli.app import app

    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


def tone(labels: list[str]) -> ToneClassifier:
    """Always the last label's, a little."""
    ones, count = np.ones(UTTERANCE_DIM), len(labels)
    return ToneClassifier(tuple(labels), 0 * ones, ones, np.zeros((count, UTTERANCE_DIM)), np.arange(count, dtype=float), {})


def write_run(folder: Path, **changes: Any) -> Path:
    """A run's YAML; its caches and its run are in `folder`. `changes` are sections laid over."""
    values = {
        "name": "tiny", "run_dir": str(folder / "run"), "cache_dir": str(folder / "cache"),
        "policy": {"hidden_size": 32, "intermediate_size": 48, "num_layers": 2, "tap_layer": 0, "max_answer_steps": 14},
        "warmup": {"steps": 2, "batch_size": 2, "demonstration_contrasts": 1},
        "distill": {
            "steps": 4, "batch_size": 8, "answers_per_query": 2, "hidden_size": 16, "layers": 1, "degenerate_answers": 2,
        },
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values | changes))
    return path


def make_data(config: Path) -> Dataset:
    """A contrast of each category for every role but demonstration, which has one of emotion."""
    run = load_config(config)
    contrasts = {name: [one for one in load_contrasts() if one.category == name] for name in CATEGORIES}
    rows = []
    for place, role in enumerate(ROLES):
        voices = SPEAKERS["test" if role == "test" else "train"]
        for name in CATEGORIES if role != "demonstration" else CATEGORIES[:1]:
            contrast = contrasts[name][place]
            for style in contrast.styles:
                kind = {"child": "child", "female": "female"}.get(style, "male")
                rows.append((role, contrast, style, Take(contrast.text, voices[kind][0], USER_STYLES[style], place)))
    families = load_families()
    shown = {style: families[style] for role, _, style, _ in rows if role == "demonstration"}
    answers = {s: Take(one.answers[0], AGENT, AGENT_TONES[one.tone], 0, coded=True) for s, one in shown.items()}
    rendered = render([*(take for *_, take in rows), *answers.values()], run.cache_dir)
    queries, candidates, clips = [], [], {}
    for number, ((role, contrast, style, take), one) in enumerate(zip(rows, rendered, strict=False)):
        name = f"{contrast.id}-{style}"
        clips[f"queries/{name}"] = one
        length_s = read_clip(one.wav).duration_s
        queries.append(
            Query(name, contrast.id, contrast.category, contrast.topic, role, take.speaker.name, f"queries/{name}.wav",
                  length_s, contrast.text, contrast.text, style)
        )  # fmt: skip
        candidates.append(
            Candidate(f"{name}-{number}", contrast.id, contrast.category, contrast.topic, role, style, take.speaker.name,
                      contrast.text, contrast.text, 0.0, 1.0, None, None)
        )  # fmt: skip
    demonstrations = []
    for style, one in zip(answers, rendered[len(rows) :], strict=True):
        clips[f"answers/{style}"] = one
        query = next(q for q in queries if q.role == "demonstration" and q.style == style)
        demonstrations.append(Demonstration(query.id, answers[style].text, shown[style].tone, f"answers/{style}.wav"))
    return save_dataset(
        run.run_dir / "data",
        queries=queries,
        demonstrations=demonstrations,
        candidates=candidates,
        clips=clips,
        user_tone=tone(sorted(USER_STYLES)),
        agent_tone=tone(sorted(AGENT_TONES)),
        audibility={"accuracy": 0.5, "clips": 0},
    )
