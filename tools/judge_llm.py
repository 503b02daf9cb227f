"""Audit a real local LLM as a judge of a finished run, reading by reading, and print a row of a table for each.

make judge-llm ARGS='runs/quick --limit 16'                  # Qwen2.5-Coder-1.5B-Instruct, by `make llm`
make judge-llm ARGS='runs/quick --model FILE.gguf --only contrast'

The answers of the run's scripted systems and policies are judged; agreement is with the run's rubric. A row is printed as soon
as it is known. Replies are cached: stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paras2s.bench.audit import ALL, Audit, share_text
from paras2s.bench.paras2s.audit import JudgeAudit
from paras2s.bench.paras2s.judges import open_named_judge
from paras2s.configs.schema.judges import find_judge

ROOT = Path(__file__).resolve().parents[1]
SERVER = [str(ROOT / ".venv-llm/bin/python"), str(ROOT / "tools/local_llm.py")]
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "contrast": ("contrast", {}),
    "transcript-expected": ("transcript", {"judge.read": "expected"}),
    "transcript-reply": ("transcript", {"judge.read": "reply"}),
    "trace-expected": ("trace_local", {"judge.read": "expected"}),
    "trace-reply": ("trace_local", {"judge.read": "reply"}),
}


@contextmanager
def served(model: list[str]) -> Iterator[str]:
    """Serve the model on a free port and yield its address."""
    server = subprocess.Popen([*SERVER, *model, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        print(f"\n{server.stdout.readline().strip()}\n", flush=True)
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(20)


def row(name: str, audit: Audit, seconds: float) -> list[str]:
    """Return a reading's row of the table, in the order of the header."""
    agreement = audit.agreement
    pearson = "none" if agreement is None or agreement.value is None else f"{agreement.value:.2f}"
    if agreement is not None and agreement.low is not None and agreement.high is not None:
        pearson += f" ({agreement.low:.2f} to {agreement.high:.2f})"
    styles = [
        f"{style} {share.value:.2f}" for style, share in audit.wrong_kind.items() if style != ALL and share.value is not None
    ]
    each = audit.seconds.value if audit.seconds is not None else None
    return [
        name,
        f"{audit.n_scored} of {audit.n_answers}",
        pearson,
        share_text(audit.wrong_kind[ALL]) if ALL in audit.wrong_kind else "none",
        share_text(audit.other_topic[ALL]) if ALL in audit.other_topic else "none",
        ", ".join(styles),
        "none" if audit.commonest is None else f"{audit.commonest[0]}: {audit.commonest[1].value:.0%}",
        "by scores" if audit.position is None else share_text(audit.position.consistent),
        "none" if each is None else f"{each:.1f}",
        f"{seconds / 60:.0f}",
    ]


HEADER = [
    "reading", "scored", "Pearson with the rubric", "gold above wrong", "above another topic", "wrong by style", "commonest",
    "one verdict in both orders", "s a verdict", "minutes",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", default="qwen", help="a model of tools/local_llm.py, or a GGUF file")
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache/llm", help="folder of downloaded models")
    parser.add_argument("--limit", type=int, default=16, help="questions, of each category in turn")
    parser.add_argument("--only", action="append", choices=[*READINGS], help="a reading; repeatable")
    parser.add_argument("--dtype", default="float32", help="of the reading contrast; bfloat16 is faster where the CPU has AMX")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    options = parser.parse_args()
    model = [options.model, "--folder", str(options.folder)]
    found = subprocess.run([*SERVER, *model, "--path"], stdout=subprocess.PIPE, text=True, check=True)
    path = found.stdout.splitlines()[-1]
    tone = options.run / "data" / "tone_agent.json"
    with served(model) as url:
        print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
        for name in options.only or READINGS:
            judge, overrides = READINGS[name]
            served_by = {"llm.base_url": url, "llm.model": Path(path).name, "llm.concurrency": 1, "llm.max_output_tokens": 512}
            overrides = overrides | ({"model": path, "dtype": options.dtype} if judge == "contrast" else served_by)
            chosen = JudgeAudit(
                open_named_judge(find_judge(judge), overrides, tone, options.cache, True), options.run, options.limit
            )
            started = time.perf_counter()
            audit, _ = chosen.run(lambda done, total: None)
            print(f"| {' | '.join(row(name, audit, time.perf_counter() - started))} |", flush=True)
            for reason, count in audit.unscored.items():
                print(f"unscored in {name}: {count} times {reason}", flush=True)


if __name__ == "__main__":
    main()
