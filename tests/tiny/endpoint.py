"""An OpenAI-compatible endpoint on the loopback address that says what a test tells it to, and can misbehave.

It stands at the seam that needs a key. Everything else is real: HTTP, the `openai` client, retries, cache.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Say:
    """A completion with this text."""

    text: str
    finish_reason: str = "stop"
    refusal: str | None = None
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 20})


@dataclass(frozen=True)
class Fail:
    """An HTTP error."""

    status: int
    message: str = "scripted failure"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """A body that is sent as it is: broken JSON, or the bytes of a spoken answer."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Hang:
    """No answer until the client gives up."""


class Drip:
    """A body that comes a byte at a time, without end."""


class Cut:
    """The connection ends in the middle of the body."""


class Drop:
    """The connection ends before a byte of the reply."""


Behaviour = Say | Fail | Raw | Hang | Drip | Cut | Drop


class ScriptedEndpoint:
    """Serves in a thread of its own while the `with` block lasts. `answer(request, number)` decides; `requests` keeps all.

    A request is its JSON, or the fields of its form; "route" is its path.
    """

    def __init__(self, answer: Callable[[dict[str, Any], int], Behaviour], latency_s: float = 0.0) -> None:
        self.answer = answer
        self.latency_s = latency_s
        self.requests: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._now = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> ScriptedEndpoint:
        self._thread.start()
        assert self._ready.wait(60), "the endpoint does not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=2**28)
        for route in ("/v1/chat/completions", "/v1/completions", "/v1/audio/speech", "/v1/score", "/inference_zero_shot"):
            app.router.add_post(route, self._complete)
        app.router.add_get("/v1/models", self._complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if request.content_type.startswith("multipart/"):
            form = await request.post()
            sent = {name: part.file.read() if hasattr(part, "file") else part for name, part in form.items()}
        else:
            sent = json.loads(await request.read() or b"{}")
        sent |= {"authorization": request.headers.get("Authorization"), "route": request.path}
        self.requests.append(sent)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            behaviour = self.answer(sent, len(self.requests) - 1)
            await asyncio.sleep(self.latency_s)
            return await self._behave(behaviour, sent, request)
        finally:
            self._now -= 1

    async def _behave(self, behaviour: Behaviour, sent: dict[str, Any], request: web.Request) -> web.StreamResponse:
        if isinstance(behaviour, Fail):
            body = {"error": {"message": behaviour.message, "type": "scripted"}}
            return web.json_response(body, status=behaviour.status, headers=behaviour.headers)
        if isinstance(behaviour, Raw):
            return web.Response(body=behaviour.body, content_type="application/json", headers=behaviour.headers)
        if isinstance(behaviour, Hang):
            await self._stop.wait()
            return web.Response(status=503)
        if isinstance(behaviour, Drip):
            response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
            await response.prepare(request)
            while not self._stop.is_set():
                await response.write(b" ")
                await asyncio.sleep(0.02)
        if isinstance(behaviour, Drop):
            request.transport.close()
            return web.Response()
        if isinstance(behaviour, Cut):
            response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(b'{"id": "x", "choi')
            request.transport.close()
            return response
        message = {"role": "assistant", "content": behaviour.text, "refusal": behaviour.refusal}
        body = {
            "id": "scripted",
            "object": "chat.completion",
            "created": 0,
            "model": sent["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": behaviour.finish_reason}],
        }
        if behaviour.usage is not None:
            total = sum(value for value in behaviour.usage.values() if isinstance(value, int))
            body["usage"] = {**behaviour.usage, "total_tokens": total}
        return web.json_response(body)


def said(sent: dict[str, Any]) -> str:
    """All text of a request, messages in order."""
    texts = []
    for message in sent["messages"]:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
    return "\n".join(texts)
