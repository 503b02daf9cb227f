"""10,000 sentences through the text filters against a scripted endpoint that answers after 0.5 s; and an estimate of 500.

The endpoint is a process of its own. It lets 80 % through the neutrality test, 90 % through the next, and counts a token for
four letters. Prints seconds, calls a second, how many were under way at once, memory, and the estimate beside the ledger.

    python benchmarks/curation.py [--sentences 10000] [--latency 0.5] [--estimate 500]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import resource
import sys
import tempfile
import time
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from figures import Figure, add_json_option, write_figures
from tiny.endpoint import Say, ScriptedEndpoint, said

from paras2s.configs.schema.curation import CurationConfig, VoiceConfig
from paras2s.data_gen.curation.dedup import DuplicateFilter
from paras2s.data_gen.curation.llm_calls import CurationLLM, Spend
from paras2s.data_gen.curation.pipeline import Pipeline
from paras2s.data_gen.curation.report import totals
from paras2s.data_gen.curation.text_filters import run_text_tests
from paras2s.pipeline.curate import estimate_curation
from paras2s.types import Script

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u") for c in ("na", "ro", "lit", "mus", "den")]


def serve(pipe: Connection, latency_s: float) -> None:
    """Serve until told to stop; say how many were under way at once."""

    def answer(sent: dict[str, Any], _: int) -> Say:
        text = said(sent)
        # Of the sentence, so that an answer does not hang on when it is asked for.
        draw = zlib.crc32(text.encode()) % 100
        if text.startswith("You write lines"):
            rng = np.random.default_rng(zlib.crc32(text.encode()))
            count = int(re.search(r"Write (\d+)", text).group(1))  # type: ignore[union-attr]
            reply = "\n".join(f"{n}. {' '.join(rng.choice(WORDS, 10))}" for n in range(1, count + 1))
        elif "likelier" in text:
            reply = json.dumps({"reasoning": "r" * 80, "likelier": "neutral" if draw < 80 else "first"})
        elif "plausibly say" in text:
            reply = json.dumps({"reasoning": "r" * 80, "first": draw < 90, "second": True})
        elif '"differ"' in text:
            # The estimate's run speaks nothing.
            reply = json.dumps({"reasoning": "r" * 80, "differ": False})
        else:
            reply = json.dumps({"answer": "a" * 150, "tone": "warm and unhurried"})
        return Say(reply, usage={"prompt_tokens": len(text) // 4, "completion_tokens": len(reply) // 4})

    with ScriptedEndpoint(answer, latency_s) as server:
        pipe.send(server.base_url)
        pipe.recv()
    pipe.send(server.most_at_once)


def config_for(folder: Path, base_url: str) -> CurationConfig:
    """64 calls at once; one voice of each kind, which nothing is spoken with."""
    llm = {"base_url": base_url, "model": "gpt-4.1", "concurrency": 64}
    voices = [VoiceConfig(name=kind, engine="piper", kind=kind) for kind in ("male", "female", "child")]  # type: ignore[arg-type]
    values: dict[str, Any] = {
        "kind": "curation", "name": "bench", "folder": folder / "out", "cache_dir": folder / "cache",
        "writer": llm, "tester": llm,
        "contrasts": {"rl": 4_000}, "voices": voices, "speak_with": "piper", "max_lists": 100,
    }  # fmt: skip
    return CurationConfig(**values)


def filters(config: CurationConfig, count: int) -> tuple[float, int]:
    """Seconds and calls for `count` sentences through duplicates and all three tests, `texts_at_once` in memory."""
    rng = np.random.default_rng(0)
    llm, duplicates = CurationLLM.open(config, lambda *_: None), DuplicateFilter(config.near_duplicate)
    started = time.perf_counter()
    for start in range(0, count, config.texts_at_once):
        scripts = [
            Script(f"e-{n}", "emotion", f"t{n % 20}", "train", " ".join(rng.choice(WORDS, 10)), ("happy", "sad"), "bench")
            for n in range(start, min(start + config.texts_at_once, count))
        ]
        run_text_tests(duplicates.drop(scripts), llm)
        print(f"  {start + len(scripts)} sentences, {time.perf_counter() - started:.0f} s, {memory_mib():.0f} MiB", flush=True)
    return time.perf_counter() - started, sum(spend.requests for spend in llm.spends.values())


def memory_mib() -> float:
    """Largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def paid(spends: dict[str, Spend]) -> tuple[int, float]:
    """Requests and USD of the LLM stages."""
    requests, _, _, usd = totals({name: one for name, one in spends.items() if name != "speech"})
    return requests, usd or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--estimate", type=int, default=500)
    add_json_option(parser)
    sent = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, sent.latency))
    server.start()
    base_url = here.recv()
    with tempfile.TemporaryDirectory() as name:
        config = config_for(Path(name), base_url)
        took_s, calls = filters(config, sent.sentences)
        print(f"{sent.sentences} sentences, {calls} calls: {took_s:.0f} s, {calls / took_s:.0f} calls a second")
        config = replace_folder(config, Path(name) / "estimated")
        pilot = Pipeline(config, lambda *_: None, limit=100).run()
        expected, measured_on = estimate_curation(config, sent.estimate)
        requests, _, _, usd = totals(expected)
        full = Pipeline(config, lambda *_: None, limit=sent.estimate).run()
        full_requests, full_usd = paid(full.spends)
        # A pilot's lists are shorter, so nothing of it is used again: its cost comes on top.
        above = 100 * ((usd or 0) / full_usd - 1)
        print(
            f"pilot of {measured_on}: {paid(pilot.spends)[1]:.4f} USD; {sent.estimate} estimated: {requests} requests, ",
            end="",
        )
        print(f"{usd or 0:.4f} USD; ledger: {full_requests} requests, {full_usd:.4f} USD ({above:+.1f} %)")
    here.send(None)
    print(f"at most {here.recv()} calls under way at once; this process took at most {memory_mib():.0f} MiB")
    server.join()
    found = [
        Figure(f"{sent.sentences} sentences through the text filters", "s", [took_s]),
        Figure("calls", "calls/s", [calls / took_s], more_is_better=True),
        Figure("most memory", "MiB", [memory_mib()]),
        Figure(f"estimate for {sent.estimate} sentences", "USD", [usd or 0.0], [full_usd], "the ledger"),
    ]
    write_figures(sent.json, found)


def replace_folder(config: CurationConfig, folder: Path) -> CurationConfig:
    """The same in another folder, with a cache of its own."""
    return config.model_copy(update={"folder": folder / "out", "cache_dir": folder / "cache"})


if __name__ == "__main__":
    main()
