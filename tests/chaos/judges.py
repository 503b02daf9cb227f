"""The campaign on judges: servers that misbehave in every known way, against the real HTTP client and its callers.

Some of a batch's requests meet the misbehaviour, the others are answered. No verdict may be invented, an answered request keeps
its verdict, nothing but an error of its own call may come of one reply, and the ledger is the server's own count.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tiny.endpoint import Behaviour, Cut, Drip, Drop, Fail, Hang, Raw, ScriptedEndpoint

from paras2s.audio.clip import Clip, encode_clip
from paras2s.clients.audio_chat import AudioChat, AudioChatRequest
from paras2s.clients.chat import LLMClient
from paras2s.clients.rewards import RewardClient
from paras2s.configs.schema.endpoints import AudioChatConfig, HttpRewardConfig
from paras2s.configs.schema.judges import JudgingConfig
from paras2s.errors import BudgetError
from paras2s.reward.judges.base import Exchange, Utterance
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.registry import open_judge
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.http import HttpSource
from paras2s.types import Unscored, Verdict
from paras2s.utils.cache import JsonCache

N_REQUESTS = 8
# Which of a batch's requests meet the misbehaviour, by seed; two timeouts in a row would rightly end the command.
HIT = ((0,), (3, 6), (1, 4, 7))
SILENCE = Clip(np.zeros(0, dtype=np.float32), 16_000)
USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
SLOWEST_S = 20.0
# And commands to the user's terminal.
SURROGATE = "\ud83d half an emoji\x1b]0;title\x07\x9b2J"
Body = dict[str, Any]
Change = Callable[[Body], Behaviour]


def sent_as(body: Any, **headers: str) -> Raw:
    """Return a reply with this JSON body."""
    return Raw(json.dumps(body).encode(), headers)


def with_text(text: str) -> Change:
    """Return a change to the text of a completion."""
    return lambda body: sent_as({**body, "choices": [{**body["choices"][0], "message": {"content": text}}]})


def with_choice(**changes: Any) -> Change:
    """Return a change to a completion's first choice."""
    return lambda body: sent_as({**body, "choices": [{**body["choices"][0], **changes}]})


def with_message(**changes: Any) -> Change:
    """Return a change to a completion's message."""
    return lambda body: with_choice(message={**body["choices"][0]["message"], **changes})(body)


def with_key(**changes: Any) -> Change:
    """Return a change to the body itself."""
    return lambda body: sent_as({**body, **changes})


def always(behaviour: Behaviour) -> Change:
    """Return a behaviour that does not look at the honest body."""
    return lambda _: behaviour


def error_body(**error: Any) -> Change:
    """Return an error in a body of HTTP 200."""
    return always(sent_as({"error": error}))


# Of any server of HTTP. None of them leaves a verdict.
TRANSPORT: dict[str, Change] = {
    **{f"HTTP {status}": always(Fail(status)) for status in (400, 408, 409, 413, 418, 422, 425, 429, 451, 500, 502, 503, 529)},
    "HTTP 429, Retry-After of a date that is none": always(Fail(429, headers={"Retry-After": "Wed, 99 Oct 99999"})),
    "HTTP 503, Retry-After of a day": always(Fail(503, headers={"Retry-After": "86400"})),
    "HTTP 307 to itself": always(Fail(307, headers={"Location": "/v1/chat/completions"})),
    "HTTP 307 to no address": always(Fail(307, headers={"Location": "http://"})),
    "HTTP 400, half an emoji": always(Fail(400, SURROGATE)),
    "HTTP 400, a megabyte of words": always(Fail(400, "x" * 2**20)),
    "dropped connection": always(Drop()),
    "cut in the body": always(Cut()),
    "no reply": always(Hang()),
    "a byte at a time": always(Drip()),
    "empty body": always(Raw(b"")),
    "a page": always(Raw(b"<html><body>502 Bad Gateway</body></html>")),
    "cut JSON": lambda body: Raw(json.dumps(body).encode()[:-20]),
    "no UTF-8": always(Raw(b"\xff\xfe\x00{")),
    "200,000 brackets": always(Raw(b"[" * 200_000)),
    "5,000 digits": always(Raw(b"9" * 5_000)),
    "a number": always(Raw(b"7")),
    "null": always(Raw(b"null")),
    "a list": lambda body: sent_as([body]),
    "an object without keys": always(Raw(b"{}")),
    "a compressed body that is none": lambda body: Raw(json.dumps(body).encode(), {"Content-Encoding": "gzip"}),
    "80 MB in 80 kB": always(Raw(gzip.compress(b" " * 80 * 2**20, 1), {"Content-Encoding": "gzip"})),
}
# Misbehaviours that a timeout ends.
SLOW = ("no reply", "a byte at a time")
# What only a later reply shows: a server is what its first reply says that it is.
LATER = ("another judge", "another range")
# Of endpoints of language models, whatever the text is for.
CHAT: dict[str, Change] = {
    "an error with status 200": error_body(message="overloaded", code=503),
    "an error without words": error_body(code=None),
    "an error of half an emoji": error_body(message=SURROGATE, code=400),
    "no choices": with_key(choices=[]),
    "choices of null": with_key(choices=None),
    "a choice of text": with_key(choices=["fine"]),
    "no message": with_choice(message=None),
    "content of a number": with_text(5),  # type: ignore[arg-type]
    "content of 400 nested lists": lambda body: with_message(content=json.loads('[{"text":' * 400 + '"x"' + "}]" * 400))(body),
    "no content": with_message(content=None),
    "blanks": with_text("  \n"),
    "a refusal": with_message(content=None, refusal="I cannot judge this."),
    "a refusal of half an emoji": with_message(content=None, refusal=SURROGATE),
    "a refusal that is no text": with_message(content=None, refusal={"why": "no"}),
    "cut at its limit": with_choice(finish_reason="length"),
    "a content filter": with_choice(finish_reason="content_filter"),
    "all thought": with_text("<think>" + '{"score": 5}' * 9),
}
# What takes nothing from a verdict.
HARMLESS: dict[str, Change] = {
    "no usage": with_key(usage=None),
    "usage below zero": with_key(usage={"prompt_tokens": -5, "completion_tokens": 20}),
    "usage without end": lambda body: Raw(
        json.dumps({**body, "usage": "U"}).replace('"U"', '{"prompt_tokens": 1e999}').encode()
    ),
    "usage of words": with_key(usage="much"),
    "another model": with_key(model="gpt-2-evil"),
    "a model of half an emoji": with_key(model=SURROGATE),
    "an end of half an emoji": with_choice(finish_reason=SURROGATE),
    "unknown keys": with_key(extra={"a": [1]}, choices_="x"),
}
# Texts that hold no verdict on a scale.
NO_SCORE: dict[str, Change] = {
    name: with_text(text)
    for name, text in {
        "prose": "This deserves a five out of five.",
        "a score of 6": '{"reasoning": "", "score": 6}',
        "a score of 0": '{"reasoning": "", "score": 0}',
        "a score of 3.5": '{"reasoning": "", "score": 3.5}',
        "a score of words": '{"reasoning": "", "score": "high"}',
        "a score of null": '{"reasoning": "", "score": null}',
        "a score of true": '{"reasoning": "", "score": true}',
        "a score of NaN": '{"reasoning": "", "score": NaN}',
        "a score without end": '{"reasoning": "", "score": Infinity}',
        "a list of scores": '{"reasoning": "", "score": [5]}',
        "no score": '{"reasoning": "very good"}',
        "two scores": '{"score": 5} or {"score": 4}',
        "one key twice": '{"score": 5, "score": 1}',
        "a broken verdict beside a whole one": '{"reasoning": "they said {"score": 5}", "score": 1',
        "an open brace": '{"reasoning": "x", "score": 5',
        "half an emoji without a score": json.dumps({"reasoning": SURROGATE}),
        "5,000 braces": '{"' * 5_000,
    }.items()
}
# Of the log-probabilities by which a score is read.
LOGPROBS: dict[str, Change] = {
    "no log-probabilities": with_choice(logprobs=None),
    "log-probabilities of no position": with_choice(logprobs={"content": []}),
    "log-probabilities of words": with_choice(logprobs="high"),
    **{
        f"a log-probability of {name}": lambda body, value=value: Raw(  # type: ignore[misc]
            re.sub(r'"logprob": -[0-9.e-]+', f'"logprob": {value}', json.dumps(body)).encode()
        )
        for name, value in {"1e999": "1e999", "-1e999": "-1e999", "NaN": "NaN", "text": '"nan"', "a thousand": "1000"}.items()
    },
}
ECHOED: dict[str, Change] = {
    "no log-probabilities": with_choice(logprobs=None),
    "another prompt": with_choice(logprobs={"tokens": ["other"], "token_logprobs": [-1.0]}),
    "fewer values than tokens": with_choice(logprobs={"tokens": ["a", "b"], "token_logprobs": [-1.0]}),
    **{
        f"a log-probability of {name}": lambda body, value=value: Raw(  # type: ignore[misc]
            re.sub(r"-0\.5\d*", value, json.dumps(body)).encode()
        )
        for name, value in {"1e999": "1e999", "-1e999": "-1e999", "NaN": "NaN", "text": '"nan"', "null": "null"}.items()
    },
}


def with_scores(change: Callable[[list[Body]], Any], **head: Any) -> Change:
    """Return a change to the scores of a reward server, and to the head of its reply."""
    return lambda body: sent_as({**body, "scores": change(body["scores"]), **head})


def each(**changes: Any) -> Change:
    """Return a change to every entry; a value of `...` takes the key out."""
    return with_scores(
        lambda scores: [{key: value for key, value in (score | changes).items() if value is not ...} for score in scores]
    )


REWARDS: dict[str, Change] = {
    "no scores": with_scores(lambda _: []),
    "scores of null": with_scores(lambda _: None),
    "a score twice": with_scores(lambda scores: scores * 2),
    "an answer that was not sent": with_scores(lambda scores: [{**one, "id": "x"} for one in scores]),
    "an id of half an emoji": with_scores(lambda scores: [{**one, "id": SURROGATE} for one in scores]),
    "another protocol": with_key(protocol=2),
    "another judge": with_key(judge="other/2"),
    "another range": with_key(low=0, high=10),
    "a range without width": with_key(low=5, high=5),
    "beyond its range": each(score=9.0),
    "a score of words": each(score="5"),
    "a score of true": each(score=True),
    "a score of null": each(score=None),
    "a score and a reason for none": each(unscored="silent"),
    "no score": each(score=..., unscored="silent"),
    "a reason of half an emoji": each(score=..., unscored=SURROGATE),
    "a reason that commands a terminal": each(score=..., unscored="\x1b]0;title\x07\x9b2J"),
    "a score of NaN": lambda body: Raw(json.dumps({**body, "scores": [{**body["scores"][0], "score": float("nan")}]}).encode()),
    "a score of 1e999": lambda body: Raw(re.sub(r'"score": [0-9.]+', '"score": 1e999', json.dumps(body)).encode()),
    "400 nested lists": each(score=json.loads("[" * 400 + "]" * 400)),
    "an unknown key": each(mood="good"),
}
HARMLESS_REWARDS: dict[str, Change] = {
    "a cost of null": each(cost_usd=None),
    "no cost": each(cost_usd=...),
}


def with_audio(**changes: Any) -> Change:
    """Return a change to the spoken part of a reply."""
    return lambda body: with_message(audio={**body["choices"][0]["message"]["audio"], **changes})(body)


SPEECH: dict[str, Change] = {
    "no audio": with_message(audio=None),
    "audio of no base64": with_audio(data="***"),
    "audio of no WAV": with_audio(data=base64.b64encode(b"no sound").decode()),
    "a cut WAV": with_audio(data=base64.b64encode(b"RIFF\x00\x00\x00\x00WAVE").decode()),
    "audio of a number": with_audio(data=7),
    "no choices": with_key(choices=[]),
}
HARMLESS_SPEECH: dict[str, Change] = {
    "a transcript of half an emoji": with_audio(transcript=SURROGATE),
    "no usage": with_key(usage=None),
}


@dataclass(frozen=True)
class Caller:
    """What asks: `honest` is the body that a request deserves, `ask` returns what came of each, `expected` what is right."""

    honest: Callable[[Body], Body]
    ask: Callable[[str, Path, Body], Sequence[object]]
    expected: Callable[[int], object]
    none_from: dict[str, Change]
    harmless: dict[str, Change] = field(default_factory=dict)


def number_in(sent: Body) -> int:
    """Return which of a batch's requests this is, by its words."""
    words = json.dumps(sent["prompt"] if "prompt" in sent else sent.get("messages", sent.get("groups")))
    found = re.search(r"answer (\d+)", words, re.IGNORECASE)
    assert found is not None, words[:300]
    return int(found[1])


def completion(sent: Body, **choice: Any) -> Body:
    """Return a completion with usage."""
    return {"id": "x", "model": sent["model"], "choices": [{"finish_reason": "stop", **choice}], "usage": USAGE}


def limits(url: str, given: Body) -> Body:
    """Return the settings of an endpoint in this campaign."""
    return {"base_url": url, "timeout_s": 20.0, "max_attempts": 2, "backoff_s": 0.0, "concurrency": 1, **given}


def exchanges() -> list[Exchange]:
    """Return questions and answers in writing, which nothing has to hear."""
    return [Exchange(Utterance(text="What a day.", style="sad"), SILENCE, f"answer {number}") for number in range(N_REQUESTS)]


def score_of(number: int) -> float:
    """Return the score that a server of this campaign gives."""
    return float(1 + number % 5)


def honest_score(sent: Body) -> Body:
    """Return a score, with the log-probabilities of its token."""
    score = str(int(score_of(number_in(sent))))
    texts = ['{"', "score", '": ', score, ', "reasoning": "so"}']
    content = [{"token": text, "logprob": -0.1, "top_logprobs": []} for text in texts]
    content[3]["top_logprobs"] = [{"token": score, "logprob": -0.001}, {"token": "x", "logprob": -7.0}]
    return completion(sent, message={"content": "".join(texts)}, logprobs={"content": content})


def ask_score(url: str, folder: Path, given: Body, **judge: Any) -> Sequence[object]:
    """Score by an LLM judge of transcripts."""
    config = JudgingConfig.model_validate(
        {"extractors": [{"name": "words"}], "judge": {"reads": "transcript", **judge}, "llm": limits(url, given)}
    )
    cache = JsonCache(folder / "judge.sqlite")
    client = LLMClient(config.llm, cache)
    found = LLMJudge(config, client, cache).score_batch(exchanges())
    # What the client's books say, for `attack` to compare.
    given |= {"spent_usd": client.spent_usd, "held_usd": client.spent_usd + client.unreported_usd}
    return [one.score if isinstance(one, Verdict) else one for one in found]


def honest_echo(sent: Body) -> Body:
    """Return an echo of the prompt, a token a character; the answer's own style is likelier."""
    prompt, value = sent["prompt"], -0.5 - number_in(sent) / 100 if " sad" in sent["prompt"] else -0.5
    logprobs = {"tokens": list(prompt), "token_logprobs": [None, *[value] * (len(prompt) - 1)]}
    return {**completion(sent, logprobs=logprobs), "usage": {"prompt_tokens": 100, "completion_tokens": 0}}


def ask_contrast(url: str, folder: Path, given: Body) -> Sequence[object]:
    """Score by the contrast judge at an endpoint that echoes."""
    settings = {f"llm.{key}": value for key, value in {**limits(url, given), "model": "gpt-4o"}.items()}
    judge: Any = open_judge("contrast", {"cache_dir": str(folder), "engine": "completions", **settings})
    return [one.score if isinstance(one, Verdict) else one for one in judge.score_batch(exchanges())]


def contrast_of(number: int) -> float:
    """Return the contrast judge's score: nine characters, each less likely under the answer's own style."""
    return 3.0 + 2.0 * math.tanh(-9 * number / 100 / 4)


def honest_reward(sent: Body) -> Body:
    """Return the scores of a reward server."""
    ids = [answer["id"] for group in sent["groups"] for answer in group["answers"]]
    scores = [{"id": id_, "score": score_of(int(id_.split("/")[0])), "cost_usd": 0.001} for id_ in ids]
    return {"protocol": 1, "judge": "fake/1", "low": 1, "high": 5, "scores": scores}


def ask_reward(url: str, folder: Path, given: Body) -> Sequence[object]:
    """Score by a reward server, a request an answer."""
    options = limits(url, given)
    options |= {"url": options.pop("base_url"), "batch_size": 1, "audio": "none"}
    client = RewardClient(HttpRewardConfig.model_validate(options))
    groups = [
        Group(RewardQuestion(f"q{number}", None, "hello"), (GivenAnswer(1, f"answer {number}"),))
        for number in range(N_REQUESTS)
    ]
    return [row[0] for row in HttpSource(client).score(groups)]


def tone(number: int) -> Clip:
    """Return a clip that is known by its length."""
    return Clip(np.full(1_600 + 160 * number, 0.1, dtype=np.float32), 16_000)


def honest_speech(sent: Body) -> Body:
    """Return a spoken reply."""
    number = number_in(sent)
    audio = {
        "id": "a",
        "expires_at": 0,
        "transcript": f"reply {number}",
        "data": base64.b64encode(encode_clip(tone(number))).decode(),
    }
    return completion(sent, index=0, message={"role": "assistant", "content": None, "audio": audio})


def ask_speech(url: str, folder: Path, given: Body) -> Sequence[object]:
    """Ask a speech-to-speech model for spoken replies."""
    chat = AudioChat(AudioChatConfig.model_validate({**limits(url, given), "model": "gpt-audio"}), folder / "spoken")
    replies = chat.complete_all([AudioChatRequest((f"answer {number}", tone(number))) for number in range(N_REQUESTS)])
    return [Unscored("speech", reply.failed) if reply.clip is None else len(reply.clip.samples) for reply in replies]


CALLERS: dict[str, Caller] = {
    "a score by an LLM judge": Caller(honest_score, ask_score, score_of, {**TRANSPORT, **CHAT, **NO_SCORE}, HARMLESS),
    "a score by its probabilities": Caller(
        honest_score,
        lambda *given: ask_score(*given, read="expected"),
        score_of,
        {**TRANSPORT, **CHAT, **NO_SCORE, **LOGPROBS},
        HARMLESS,
    ),
    "a likelihood ratio": Caller(honest_echo, ask_contrast, contrast_of, {**TRANSPORT, **ECHOED}, HARMLESS),
    "a reward server": Caller(honest_reward, ask_reward, score_of, {**TRANSPORT, **REWARDS}, HARMLESS_REWARDS),
    "a spoken reply": Caller(
        honest_speech, ask_speech, lambda number: 1_600 + 160 * number, {**TRANSPORT, **SPEECH}, HARMLESS_SPEECH
    ),
}


@dataclass
class JudgesResult:
    """Runs of every caller, and every failure."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def billed_usd(behaviour: Behaviour) -> float:
    """Return what a reply that can be read says that it costs, at the prices of gpt-4o."""
    if not isinstance(behaviour, Raw) or behaviour.headers:
        return 0.0
    try:
        usage = json.loads(behaviour.body)["usage"]
        return float(usage["prompt_tokens"] * 2.5e-6 + usage["completion_tokens"] * 10e-6) if usage == USAGE else 0.0
    except (ValueError, TypeError, LookupError, RecursionError):
        return 0.0


def attack(name: str, change: Change, harmless: bool, seed: int, **given: Any) -> list[str]:
    """Run one batch against one misbehaviour and return what is wrong with its outcome.

    With a budget every request meets the misbehaviour, and what is wrong is the budget alone.
    """
    caller, bills = CALLERS[name], [0.0]
    hit = range(N_REQUESTS) if "budget_usd" in given else HIT[seed % len(HIT)]

    def answer(sent: Body, _: int) -> Behaviour:
        body = caller.honest(sent)
        # Of the readings that a likelihood ratio is made of, only the one under the answer's own style.
        meets = number_in(sent) in hit and " sad" in sent.get("prompt", " sad")
        behaviour = change(body) if meets else sent_as(body)
        bills.append(billed_usd(behaviour))
        return behaviour

    wrong: list[str] = []
    budget_usd = given.get("budget_usd")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ScriptedEndpoint(answer) as server:
        try:
            found = caller.ask(server.base_url, Path(folder), given)
        except Exception as error:
            return [f"{type(error).__name__}: {str(error)[:100]!r}"]
    if "spent_usd" in given and not math.isclose(given["spent_usd"], sum(bills), rel_tol=1e-9, abs_tol=1e-12):
        wrong.append(f"the ledger says {given['spent_usd']:.6f} USD, the server billed {sum(bills):.6f}")
    if budget_usd is not None:
        over = given["held_usd"] > budget_usd
        return [*wrong, *([f"{given['held_usd']:.4f} of {budget_usd:.4f} USD are spent"] if over else [])]
    for number, outcome in enumerate(found):
        right = caller.expected(number)
        if number in hit and not harmless:
            if not isinstance(outcome, Unscored | BudgetError):
                wrong.append(f"{outcome} is invented")
            elif not reason_of(outcome).isprintable():
                wrong.append(f"its reason cannot be printed: {reason_of(outcome)!r}")
        elif not same(outcome, right):
            wrong.append(f"request {number}: {outcome!r:.120} in place of {right}")
    if (took_s := time.perf_counter() - started) > SLOWEST_S:
        wrong.append(f"{took_s:.0f} s")
    return wrong


def same(outcome: object, right: object) -> bool:
    """Whether an outcome is the right one, but for rounding."""
    both = (outcome, right)
    if all(isinstance(one, int | float) for one in both):
        return math.isclose(float(outcome), float(right), rel_tol=1e-9)  # type: ignore[arg-type]
    return False


def reason_of(outcome: Unscored | BudgetError) -> str:
    """Return why there is no verdict."""
    return outcome.reason if isinstance(outcome, Unscored) else str(outcome)


def run_judges(seeds: int, only: str = "") -> JudgesResult:
    """Send every misbehaviour to everything that asks, `seeds` times."""
    result = JudgesResult()
    for name, caller in CALLERS.items():
        for harmless, behaviours in ((False, caller.none_from), (True, caller.harmless)):
            for behaviour, change in behaviours.items():
                for seed in range(seeds) if only in behaviour else ():
                    result.counts[name] += 1
                    patience = {"timeout_s": 1.0} if behaviour in SLOW else {}
                    hit = 1 + seed % (len(HIT) - 1) if behaviour in LATER else seed
                    wrong = attack(name, change, harmless, hit, **patience)
                    result.failures += [f"{name}, {behaviour}, seed {seed}: {fault}" for fault in wrong]
    return result


def run_budgets(only: str = "") -> JudgesResult:
    """Spend a budget of about two calls' most on replies of every kind, four calls at once."""
    result, name = JudgesResult(), "a score by an LLM judge"
    for behaviour, change in {**CALLERS[name].none_from, **HARMLESS}.items():
        if only not in behaviour:
            continue
        result.counts["a budget"] += 1
        patience = {"timeout_s": 1.0} if behaviour in SLOW else {}
        wrong = attack(name, change, False, 0, budget_usd=0.05, concurrency=4, **patience)
        result.failures += [f"a budget, {behaviour}: {fault}" for fault in wrong]
    return result


def judges_section(result: JudgesResult, seeds: int) -> str:
    """Return the part of the page on judges."""
    kinds = {name: len(caller.none_from) + len(caller.harmless) for name, caller in CALLERS.items()}
    rows = [f"| {name} | {kinds.get(name, '-')} | {number:,} |" for name, number in result.counts.items()]
    failures = [f"- {failure:.118}" for failure in result.failures[:50]] or ["No failure."]
    return "\n".join([
        "## Judges that misbehave", "",
        "A server of this machine fails, lies, hangs or sends what cannot be read, for some requests of a batch; the client is",
        "the package's own. No score may be invented, the others keep theirs, no reply ends a command, the ledger is the",
        "server's count, and a budget is never passed.", "", "```bash",
        f"python tests/chaos/campaign.py --only judges --seeds {seeds} --out docs/reliability.md", "```", "",
        "| asked for | misbehaviours | batches |", "|---|---|---|", *rows, "", *failures, "",
    ])  # fmt: skip
