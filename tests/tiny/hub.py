"""A hub on a free port of this machine: the calls that `huggingface_hub` makes for a push and a pull, and no other."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_tokenOfATest0123456789"


def oid(data: bytes) -> str:
    """Name bytes as git names a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repo:
    """A repository; every commit has all its files, and `main` is the last one."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    def at(self, revision: str) -> str | None:
        return self.head if revision == "main" else revision if revision in self.commits else None


@dataclass
class Hub:
    """Repositories by "models/USER/NAME", tokens by right, calls and files that came, and how many commits it accepts."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    writers: set[str] = field(default_factory=lambda: {TOKEN})
    readers: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    accepts: int = 1_000


class Refused(Exception):
    """An answer with an error: its status, and the hub's own code for it."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message = status, code, message


class Handler(BaseHTTPRequestHandler):
    """The calls of a push (create, preupload, commit) and of a pull (info, tree, resolve)."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_GET

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.hub.calls.append(f"{self.command} {'/'.join(parts)}")
        try:
            if parts[0] != "api":
                self.resolve(parts)
            else:
                self.send(200, json.dumps(self.api(parts[1:], body)).encode(), {"Content-Type": "application/json"})
        except Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self.send(refused.status, json.dumps({"error": refused.message}).encode(), headers)

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def must_write(self) -> None:
        if self.token() not in self.hub.writers | self.hub.readers:
            raise Refused(401, message="Invalid credentials in Authorization header")
        if self.token() not in self.hub.writers:
            raise Refused(403, message=f"Forbidden: {self.token()} may only read")

    def find(self, name: str) -> Repo:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.token() not in self.hub.writers | self.hub.readers):
            raise Refused(401 if repo else 404, "RepoNotFound", "Repository not found")
        return repo

    def api(self, parts: list[str], body: bytes) -> Any:
        if parts == ["validate-yaml"]:
            return {"errors": [], "warnings": []}
        if parts == ["repos", "create"]:
            self.must_write()
            wanted = json.loads(body)
            name = f"{wanted.get('type', 'model')}s/{wanted['organization']}/{wanted['name']}"
            self.hub.repos[name] = Repo(wanted["visibility"] == "private")
            return {"url": f"{self.hub.url}/{name.removeprefix('models/')}"}
        name, rest = "/".join(parts[:3]), parts[3:]
        repo = self.find(name)
        revision = repo.at(rest[1] if len(rest) > 1 else "main")
        if revision is None:
            raise Refused(404, "RevisionNotFound", "Invalid rev id")
        files = repo.commits[revision]
        if not rest or rest[0] == "revision":
            return {"id": "/".join(parts[1:3]), "sha": revision, "private": repo.private, "tags": [], "siblings": []}
        if rest[0] == "tree":
            return [{"type": "file", "path": path, "size": len(data), "oid": oid(data)} for path, data in files.items()]
        self.must_write()
        if rest[0] == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            known = {path: oid(files[path]) for path in paths if path in files}
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": path, "oid": known.get(path), **mode} for path in paths]}
        assert rest[0] == "commit", self.path
        if self.hub.accepts == 0:
            raise Refused(400, message=f"no more commits by {self.token()}")
        self.hub.accepts -= 1
        lines = [json.loads(line) for line in body.splitlines()]
        new = {row["value"]["path"]: base64.b64decode(row["value"]["content"]) for row in lines if row["key"] == "file"}
        self.hub.committed += new
        commit = hashlib.sha1(repr((revision, sorted(new))).encode()).hexdigest()
        repo.commits[commit] = {**files, **new}
        return {"success": True, "commitOid": commit, "commitUrl": f"{self.hub.url}/{name}/commit/{commit}"}

    def resolve(self, parts: list[str]) -> None:
        parts = parts if parts[0] == "datasets" else ["models", *parts]
        repo = self.find("/".join(parts[:3]))
        assert parts[3] == "resolve", self.path
        revision = repo.at(parts[4])
        data = repo.commits[revision].get("/".join(parts[5:])) if revision else None
        if data is None:
            raise Refused(404, "EntryNotFound", "Entry not found")
        self.send(200, data, {"X-Repo-Commit": str(revision), "ETag": f'"{oid(data)}"'})


@contextlib.contextmanager
def serve_hub(patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve an empty hub, and point the library at it, with a token that may write."""
    from huggingface_hub import constants

    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OwnHandler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setenv("HF_TOKEN", TOKEN)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
