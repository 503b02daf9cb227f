"""1,000 judge calls against a scripted endpoint on this machine: seconds, lost verdicts, and calls of a second run.

The endpoint waits 0.5 s before each reply and fails every fifth call in one of four ways. It is a process of its own.

    python benchmarks/judge_calls.py [--calls 1000] [--concurrency 64] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from figures import Figure, add_json_option, write_figures
from tiny.endpoint import Cut, Fail, Raw, Say, ScriptedEndpoint

from paras2s.clients.chat import LLMClient, Message, Reply, Request
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.reward.judges.parsing import PAIR_SCHEMA, read_pair
from paras2s.utils.cache import JsonCache

VERDICT = json.dumps({"reasoning": "x" * 300, "content": "1", "voice_quality": "both_good", "paralinguistics": "2"})
# 1,000 calls, 64 at once: sixteen turns of 0.5 s are 8.0 s, so this leaves 13 ms a turn for everything else.
LIMIT_S = 8.2
FAILURES = (Fail(500), Fail(429), Cut(), Raw(b'{"id": "x", "cho'))


def serve(pipe: Connection, latency_s: float, failing: bool) -> None:
    """Serve until told to stop; say how many calls came, and how many were under way at once."""

    def answer(_: dict[str, Any], number: int) -> Any:
        return FAILURES[number // 5 % len(FAILURES)] if failing and number % 5 == 4 else Say(VERDICT)

    with ScriptedEndpoint(answer, latency_s) as server:
        pipe.send(server.base_url)
        pipe.recv()
    pipe.send((len(server.requests), server.most_at_once))


def run(calls: int, concurrency: int, latency_s: float, failing: bool, folder: Path) -> tuple[float, float, int, int, int]:
    """Seconds of a first and of a second run; verdicts read; calls that reached the endpoint; most at once."""
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, latency_s, failing))
    server.start()
    config = LLMConfig(base_url=here.recv(), model="gpt-4o", concurrency=concurrency, backoff_s=0.1)
    prompt = "material " * 300
    requests = [Request((Message("user", (f"{prompt}{number}",)),), PAIR_SCHEMA) for number in range(calls)]
    took_s = []
    for _ in range(2):
        client = LLMClient(config, JsonCache(folder / "kept.sqlite"))
        started = time.perf_counter()
        replies = client.complete_all(requests)
        took_s.append(time.perf_counter() - started)
    read = sum(isinstance(reply, Reply) and bool(read_pair(reply.text)) for reply in replies)
    assert client.calls == 0, "the second run made a call"
    here.send("stop")
    reached, at_once = here.recv()
    server.join()
    return took_s[0], took_s[1], read, reached, at_once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency-s", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=3)
    add_json_option(parser)
    options = parser.parse_args()
    least_s = options.calls / options.concurrency * options.latency_s
    found = []
    for failing in (False, True):
        rows = []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(run(options.calls, options.concurrency, options.latency_s, failing, Path(folder)))
        first = [row[0] for row in rows]
        again_s = statistics.median([row[1] for row in rows])
        print("every fifth call fails:" if failing else "no failures:")
        print(f"  {statistics.median(first):.2f} s ({min(first):.2f} to {max(first):.2f}, n = {len(rows)})", end=", ")
        print(f"of which {least_s:.2f} s are the endpoint's latency; again {again_s:.2f} s and no call")
        print(f"  verdicts {[row[2] for row in rows]} of {options.calls}, calls {[row[3] for row in rows]}", end=", ")
        print(f"at most {max(row[4] for row in rows)} at once")
        name = f"{options.calls} calls{', every fifth fails' if failing else ''}"
        found.append(Figure(name, "s", first, at_most=None if failing else LIMIT_S))
        found.append(Figure(f"{name}: verdicts", "", [row[2] for row in rows], at_least=options.calls))
        found.append(Figure(f"{name}: a second run, from the cache", "s", [row[1] for row in rows]))
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
