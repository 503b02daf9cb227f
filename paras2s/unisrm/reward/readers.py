"""The two ways to put an item to a trained UniSRM: a checkpoint in this process, or a server that is sent prompt and clips."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paras2s.audio.clip import Clip, encode_clip
from paras2s.clients.chat import Audio, LLMClient, Message, Reply, Request, Tokens
from paras2s.configs.schema.base import parse_config
from paras2s.configs.schema.unisrm import ServedUniSRMConfig, ThinkerConfig, UniSRMJudgeConfig
from paras2s.errors import BudgetError, ConfigError, DataError, JudgeError
from paras2s.reward.judges.parsing import is_readable, require_complete
from paras2s.types import Unscored
from paras2s.unisrm.reward.messages import fitted_clip, user_parts
from paras2s.unisrm.reward.reply import Malformed, parse_reply
from paras2s.unisrm.reward.tasks import Record, TaskId
from paras2s.unisrm.reward.thinker import SETTINGS, Encoded, UniSRM, instructions
from paras2s.utils.cache import JsonCache, key_of
from paras2s.utils.io import read_json

CHUNK_BYTES = 1 << 22
# The texts and clips of one item by name.
Inputs = tuple[Mapping[str, str], Mapping[str, Clip]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Read:
    """A reply, its parsed record, and its cost; in this process it costs nothing."""

    reply: str
    record: Record | Malformed
    latency_s: float
    tokens: Tokens = field(default_factory=Tokens)
    cost_usd: float | None = 0.0


Outcome = Read | Unscored | BudgetError


class Reader(ABC):
    """Reader of a task's items. `version` changes with all that a reply depends on; `client` None: it makes no call."""

    name: str
    version: str
    systems: Mapping[TaskId, str]
    client: LLMClient | None = None

    @abstractmethod
    def read(self, task_id: TaskId, items: Sequence[Inputs], on_progress: Progress | None = None) -> list[Outcome]:
        """Return a parsed reply to each item, in order; an item that the model cannot take is Unscored."""

    def requests(self, task_id: TaskId, items: Sequence[Inputs]) -> list[Request | Unscored]:
        """Return the calls of each item; [] if none is made."""
        return []


class LocalReader(Reader):
    """A checkpoint in this process."""

    name = "unisrm"

    def __init__(self, config: UniSRMJudgeConfig, checkpoint: Path) -> None:
        """Load the model. Raises JudgeError: the folder holds none."""
        self.config, self.model = config, UniSRM.load(checkpoint)
        self.systems = self.model.systems
        self.version = f"{weights_digest(checkpoint)}-{_digest(self.systems)}-{config.max_reply_tokens}"

    def read(self, task_id: TaskId, items: Sequence[Inputs], on_progress: Progress | None = None) -> list[Outcome]:
        """Return all items, `batch_size` at once."""
        started = time.perf_counter()
        encoded = [self._encoded(task_id, *item) for item in items]
        rows = [item for item in encoded if isinstance(item, Encoded)]
        texts = self.model.reply(rows, self.config.max_reply_tokens, self.config.batch_size) if rows else []
        each_s = (time.perf_counter() - started) / max(len(rows), 1)
        reasoning = self.model.config.reasoning
        reads = iter([Read(text, parse_reply(task_id, text, reasoning), each_s) for text in texts])
        if on_progress:
            on_progress(len(items), len(items))
        return [item if isinstance(item, Unscored) else next(reads) for item in encoded]

    def _encoded(self, task_id: TaskId, texts: Mapping[str, str], clips: Mapping[str, Clip]) -> Encoded | Unscored:
        try:
            return self.model.encode(task_id, texts, clips)
        except JudgeError as error:
            return Unscored(self.name, str(error))


class ServedReader(Reader):
    """A model at an OpenAI-compatible endpoint. Complete replies are cached, malformed ones too."""

    client: LLMClient

    def __init__(self, config: ServedUniSRMConfig, calls: bool = True) -> None:
        """Open the endpoint. Raises ConfigError: there are no such settings, or the budget or a price is wrong."""
        self.config, llm = config, config.llm
        self.client = LLMClient(llm, JsonCache(config.cache_dir / "judging.sqlite"), "served.llm", calls)
        self.thinker = ThinkerConfig() if config.settings is None else _read_settings(config.settings)
        self.systems = instructions(self.thinker)
        self.name = f"unisrm:{llm.model}"
        endpoint = [llm.base_url, llm.temperature, llm.top_p, llm.max_output_tokens, llm.seed, llm.reasoning_effort]
        limits = [self.thinker.reasoning, self.thinker.max_audio_s, self.thinker.too_long, config.audio_format]
        self.version = f"{key_of([*endpoint, llm.extra_body, *limits])[:12]}-{_digest(self.systems)}"

    def read(self, task_id: TaskId, items: Sequence[Inputs], on_progress: Progress | None = None) -> list[Outcome]:
        """Return all items, with as many calls under way as the endpoint's `concurrency`."""
        requests = self.requests(task_id, items)
        calls = [request for request in requests if isinstance(request, Request)]
        replies = iter(self.client.complete_all(calls, on_progress, lambda reply: is_readable(reply, str)))
        return [self._parsed(task_id, next(replies)) if isinstance(request, Request) else request for request in requests]

    def requests(self, task_id: TaskId, items: Sequence[Inputs]) -> list[Request | Unscored]:
        """Return the call of each item, with its clips."""
        return [self._request(task_id, *item) for item in items]

    def _request(self, task_id: TaskId, texts: Mapping[str, str], clips: Mapping[str, Clip]) -> Request | Unscored:
        parts: list[str | Audio] = []
        try:
            fitted = {name: fitted_clip(name, clip, self.thinker) for name, clip in clips.items()}
            for before, name in user_parts(task_id, texts, {name: len(clip.samples) for name, clip in fitted.items()}):
                data = encode_clip(fitted[name], self.config.audio_format.upper())
                parts += [before, Audio(data, fitted[name].duration_s, self.config.audio_format)]
        except JudgeError as error:
            return Unscored(self.name, str(error))
        return Request((Message("system", (self.systems[task_id],)), Message("user", tuple(parts))))

    def _parsed(self, task_id: TaskId, reply: Reply | JudgeError | BudgetError) -> Outcome:
        if isinstance(reply, BudgetError):
            return reply
        if isinstance(reply, JudgeError):
            return Unscored(self.name, str(reply))
        try:
            record = parse_reply(task_id, require_complete(reply), self.thinker.reasoning)
        except JudgeError as error:
            return Unscored(self.name, str(error), reply.text)
        return Read(reply.text, record, reply.latency_s, reply.tokens, reply.cost_usd)


def open_reader(config: UniSRMJudgeConfig, calls: bool = True) -> Reader:
    """Open the checkpoint or endpoint that a config names. Raises JudgeError: no model. ConfigError: as `ServedReader`."""
    if config.served is not None:
        return ServedReader(config.served, calls)
    assert config.checkpoint is not None
    return LocalReader(config, config.checkpoint)


def _read_settings(path: Path) -> ThinkerConfig:
    try:
        return parse_config(read_json(path), str(path), ThinkerConfig)
    except DataError as error:
        raise ConfigError(f"served.settings: {error}; `paras2s unisrm export` writes it beside the model") from error


def weights_digest(folder: Path) -> str:
    """Return a hash of weights, settings and tokenizer; a base of adapters counts by name. Raises JudgeError: there is none."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")])
    if not (folder / SETTINGS).is_file():
        raise JudgeError(f"{folder}: holds no UniSRM model ({SETTINGS} is missing)")
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(CHUNK_BYTES):
                digest.update(block)
    return digest.hexdigest()[:12]


def _digest(systems: Mapping[TaskId, str]) -> str:
    return key_of(sorted(systems.items()))[:8]
