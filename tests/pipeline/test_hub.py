"""Push and pull against a hub of this machine: the same bytes come back, nothing else goes out, and each refusal is a line.

Not covered: the real hub, and its storage of large files, which the library handles.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny.hub import TOKEN, Hub, Repo, serve_hub
from tiny.world import invoke

from paras2s.errors import ConfigError, DataError, HubError, StorageError

POLICY = {"policy.json": "{}", "model.safetensors": "weights", "README.md": "# Card", "tokenizer/vocabulary.json": "[]"}
DATASET = {"queries/a.wav": "a", "queries/b.wav": "b", "answers/a.wav": "c", "tone_agent.json": "{}"}
# Each is left out of every folder.
SECRET = {
    "optimiser.safetensors": "", "took.json": "", "parts.json": '{"vocoder": "elsewhere"}', ".env": "HF_TOKEN=x",
    ".cache/x": "", "cache/reply.json": "", "__pycache__/a.pyc": "", "server.key": "", ".unfinished-1": "",
}  # fmt: skip


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with serve_hub(monkeypatch) as hub:
        yield hub


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_dataset(folder: Path, files: dict[str, str] = DATASET) -> Path:
    rows = [{"role": "test", "category": "emotion", "style": style, "duration_s": 1800.0} for style in ("sad", "happy")]
    write(folder, files)
    pq.write_table(pa.Table.from_pylist(rows), folder / "queries.parquet")
    return folder


def read(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder without the library's own notes."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: data for name, data in files.items() if not name.startswith(".cache/")}


def test_a_policy_comes_back_with_the_same_bytes(hub: Hub, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy", {**POLICY, **SECRET})
    said = invoke("push", policy, "me/mine").stdout
    (repo,) = hub.repos.values()
    assert repo.private
    assert sorted(repo.commits[repo.head]) == sorted(POLICY)
    assert f"me/mine at {repo.head}, private" in said
    assert invoke("pull", "me/mine", "--revision", repo.head, "--dry-run").stdout.splitlines()[-1].startswith("  4 files, ")
    assert not Path("mine").exists()
    assert "next: paras2s talk mine" in invoke("pull", "me/mine").stdout
    assert read(Path("mine")) == {name: text.encode() for name, text in POLICY.items()}
    # Again: nothing has changed, so nothing is committed, and the folder is brought up to date.
    invoke("push", policy, "me/mine")
    assert len(repo.commits) == 2
    write(policy, {"model.safetensors": "trained on"})
    sent = json.loads(invoke("push", policy, "me/mine", "--json").stdout)
    invoke("pull", "me/mine")
    assert (sent["commit"], Path("mine/model.safetensors").read_text()) == (repo.head, "trained on")


def test_a_dry_run_shows_the_files_and_calls_nothing(hub: Hub, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy", {**POLICY, **SECRET})
    said = invoke("push", policy, "me/mine", "--public", "--dry-run").stdout
    assert "a policy, to me/mine (public)" in said
    assert "tokenizer/*.json: 1 files, 0.002 kB" in said
    assert "left out: .cache/*, .env" in said
    shown = json.loads(invoke("push", policy, "me/mine", "--dry-run", "--include", "optimiser.*", "--json").stdout)
    assert shown["files"] == {name: len(text) for name, text in {**POLICY, "optimiser.safetensors": ""}.items()}
    assert sorted(shown["left_out"]) == sorted(SECRET.keys() - {"optimiser.safetensors"})
    assert hub.calls == []


@pytest.mark.parametrize(
    ("files", "kind", "kept", "line"),
    [
        ({"reward_model.json": "{}", "reward_model.safetensors": "w", "people/study.sqlite": "who"}, "reward model",
         ["README.md", "reward_model.json", "reward_model.safetensors"], "--judge RUN"),
        ({"omni.json": "{}", "adapter_config.json": "{}", "adapter_model.safetensors": "w"}, "reward model",
         ["README.md", "adapter_config.json", "adapter_model.safetensors", "omni.json"], "--judge RUN"),
        ({"preferences.jsonl": "{}\n", "clips/a.wav": "a", "study.sqlite": "who"}, "preferences",
         ["README.md", "clips/a.wav", "preferences.jsonl"], "--preferences got/preferences.jsonl"),
    ],
    ids=["reward model", "audio reward model", "preferences"],
)  # fmt: skip
def test_each_kind_sends_its_own_files(
    files: dict[str, str], kind: str, kept: list[str], line: str, hub: Hub, tmp_path: Path
) -> None:
    sent = json.loads(invoke("push", write(tmp_path / "folder", files), "me/it", "--json").stdout)
    (repo,) = hub.repos.values()
    assert (sent["kind"], sorted(repo.commits[repo.head])) == (kind, kept)
    assert line in invoke("pull", sent["repo"], "got").stdout


def test_a_dataset_and_rollouts_are_datasets_with_a_card(hub: Hub, tmp_path: Path) -> None:
    run = tmp_path / "run"
    others = {"queries/a.npz": "features", "check/study.sqlite": "who", "spend.jsonl": "{}"}
    write_dataset(run / "data", {**DATASET, **others})
    write(run / "rollouts", {"index.jsonl": "{}\n"})
    pq.write_table(pa.table({"query_id": ["a", "b"]}), run / "rollouts/step_000000.parquet")
    assert "datasets/me/data at " in invoke("push", run / "data", "me/data", "--public").stdout
    repo = hub.repos["datasets/me/data"]
    assert not repo.private
    assert sorted(repo.commits[repo.head]) == sorted({*DATASET, "queries.parquet", "README.md"})
    card = repo.commits[repo.head]["README.md"].decode()
    assert "| queries by style | 1 happy, 1 sad |" in card
    assert "| speech | 1.00 hours |" in card
    # A card that was edited on the hub is kept.
    repo.commits[repo.head]["README.md"] = b"edited"
    invoke("push", run / "data", "datasets/me/data", "--public")
    assert repo.commits[repo.head]["README.md"] == b"edited"
    invoke("push", run / "rollouts", "me/rollouts")
    # As in a run, so that `paras2s rollouts` reads the folder.
    assert "next: paras2s rollouts got" in invoke("pull", "datasets/me/rollouts", "got").stdout
    assert read(Path("got/rollouts")) == read(run / "rollouts")
    assert "| answers | 2 |" in Path("got/README.md").read_text()


def test_a_broken_push_goes_on_where_it_ended(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Commits of 20 files, in place of 250.
    monkeypatch.setattr("huggingface_hub._upload_pipeline.INITIAL_COMMIT_SIZE_INDEX", 0)
    folder = write_dataset(tmp_path / "data", {f"queries/{number}.wav": str(number) for number in range(30)})
    hub.accepts = 1
    with pytest.raises(HubError, match="no more commits by"):
        invoke("push", folder, "me/data")
    assert len(hub.committed) == 20
    hub.accepts = 100
    invoke("push", folder, "me/data")
    # Nothing was sent twice.
    assert sorted(hub.committed) == sorted({*read(folder), "README.md"})
    invoke("pull", "datasets/me/data", "got")
    assert {name: data for name, data in read(Path("got")).items() if name != "README.md"} == read(folder)


@pytest.mark.parametrize(
    ("repo", "words", "problem"),
    [
        ("me/none", ["pull", "me/none"], "does not exist, or your token may not see it; a dataset is named datasets/me/none"),
        ("me/mine", ["pull", "me/mine", "--revision", "v9"], "has no such revision; give a branch, a tag or a commit"),
        ("me/mine", ["push", "policy", "me/open"], "exists and is public; add --public"),
        ("me/mine", ["push", "policy", "mine"], "mine: give USER/NAME, or datasets/USER/NAME"),
        ("me/mine", ["push", "policy", "datasets/me/mine"], "goes to a repository of models; give me/mine"),
        ("me/mine", ["pull", "me/mine", "policy"], "policy: exists already; give another folder"),
    ],
)
def test_a_wrong_name_is_refused_in_a_line(repo: str, words: list[str], problem: str, hub: Hub, tmp_path: Path) -> None:
    write(tmp_path / "policy", POLICY)
    hub.repos = {"models/me/mine": Repo(True), "models/me/open": Repo(False)}
    with pytest.raises((HubError, ConfigError, StorageError)) as refused:
        invoke(*words)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not any("commit" in call for call in hub.calls)


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("hf_readsOnly0123456789", "me/mine: your token may not write there"),
        ("hf_unknown0123456789", "the hub does not know your token; renew HF_TOKEN"),
        (None, "no token for the hub; set HF_TOKEN"),
    ],
    ids=["without the right", "unknown", "none"],
)
def test_a_token_is_never_printed(
    token: str | None, problem: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.readers = {"hf_readsOnly0123456789"}
    monkeypatch.setattr("huggingface_hub.get_token", lambda: token)
    monkeypatch.setenv("HF_TOKEN", token or "")
    with pytest.raises(HubError) as refused:
        invoke("push", write(tmp_path / "policy", POLICY), "me/mine")
    assert problem in str(refused.value)
    assert not token or token not in str(refused.value)
    assert hub.repos == {}


def test_a_token_in_the_hubs_own_words_is_cut_out(hub: Hub, tmp_path: Path) -> None:
    hub.accepts = 0
    with pytest.raises(HubError, match=r"status 400: .*no more commits by \.\.\.") as refused:
        invoke("push", write(tmp_path / "policy", POLICY), "me/mine")
    assert TOKEN not in str(refused.value)


def test_a_hub_that_is_not_reached(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(HubError, match=r"the hub cannot be reached .*check the network and HF_ENDPOINT"):
        invoke("push", write(tmp_path / "policy", POLICY), "me/mine")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        invoke("pull", "me/mine")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"policy.json": "{}"}, "has no card .*paras2s export"),
        ({"trainer.json": "{}"}, "is a training checkpoint; `paras2s export"),
        ({"aligned/policy.json": "{}", "data/x": ""}, "is a run; push one of its folders .*aligned, .*data"),
        ({"x.txt": ""}, "holds none of these: reward model"),
    ],
)
def test_another_folder_is_refused_with_what_to_give(files: dict[str, str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        invoke("push", write(tmp_path / "folder", files), "me/mine", "--dry-run")


def test_push_and_pull_alone_may_reach_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    invoke("push", write(tmp_path / "policy", POLICY), "me/mine", "--dry-run")
    assert "HF_HUB_OFFLINE" not in os.environ
    invoke("config", "--help")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    policy = write(tmp_path / "policy", POLICY)
    (tmp_path / "secret").write_text("mine")
    (policy / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match=r"notes\.txt: a link that leaves the folder"):
        invoke("push", policy, "me/mine", "--dry-run")
