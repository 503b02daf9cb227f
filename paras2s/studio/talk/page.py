"""The page on which two checkpoints answer, and people vote; and the same page as a file with recorded answers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.audio.clip import encode_clip, read_clip
from paras2s.data_gen.preference_file import FILE
from paras2s.errors import BudgetError, DataError, ParaS2SError, StorageError
from paras2s.reward.judges.base import names_file
from paras2s.studio.app import MODULES, app_of
from paras2s.studio.export.one_file import page_in_one_file
from paras2s.studio.export.requests import InProcess
from paras2s.studio.export.site import Site
from paras2s.studio.folders import open_folders
from paras2s.studio.talk.conversation import MAX_QUESTION_S, MAX_TYPED_CHARACTERS, Answered, Conversation, TalkQuestion, speak
from paras2s.studio.talk.setup import World
from paras2s.studio.verdict_view import Judgement, fields_of, judgement_of
from paras2s.studio.web import Export, Studio, json_response, make_templates, posted_bytes, posted_record, show_time
from paras2s.types import to_json
from paras2s.utils.io import write_text

# Half a minute of stereo at 96 kHz in 32 bits is 23 MB.
MAX_UPLOAD_BYTES = 32 << 20
PAGE = "/talk"
Tell = Callable[[int, int], object]


class _Typed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    text: str
    style: str = ""


class _Numbered(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    number: int


class _Vote(_Numbered):
    better: Literal[0, 1]


def make_talking_app(folder: Path, conversation: Conversation, world: World) -> Starlette:
    """Return the studio over a run's folder, with the page of a conversation. Raises ConfigError: the folder is missing."""
    studio = Studio(open_folders([folder]), make_templates(), talks=True)
    return app_of(
        studio, [*routes(studio, conversation, world), *(route for module in MODULES for route in module.routes(studio))]
    )


def export_talk(
    folder: Path, conversation: Conversation, world: World, questions: Sequence[TalkQuestion], out: Path, tell: Tell
) -> None:
    """Have questions answered, and write the page with their answers as one file; `tell` gets the number answered, and all.

    Raises:
        AudioError, PolicyError: a question cannot be answered. StorageError: the disk refused.
    """
    for number, question in enumerate(questions, 1):
        conversation.ask(question, blind=False)
        tell(number, len(questions))
    studio = Studio(open_folders([folder]), make_templates(), Export(show_time(time.time()), lambda kept: []), talks=True)
    with InProcess(app_of(studio, routes(studio, conversation, world))) as requests:
        site = Site(requests, [str(root) for root in studio.folders.roots])
        write_text(out, page_in_one_file(requests, site, PAGE))


def routes(studio: Studio, conversation: Conversation, world: World) -> list[BaseRoute]:
    """Return the page, its sounds, and what it sends: a recording, a typed question, a vote, the wish for names."""

    def show(request: Request) -> Response:
        shown = list(conversation.history.values())
        return studio.page(
            request,
            "talk.html.j2",
            conversation=conversation,
            world=world,
            votes=conversation.votes / FILE,
            history=[view_of(answered) for answered in (shown if studio.export else reversed(shown))],
            longest_s=MAX_QUESTION_S,
            longest_text=MAX_TYPED_CHARACTERS,
        )

    async def answer_with(request: Request, work: Callable[[], Answered]) -> Response:
        try:
            answered = await run_in_threadpool(work)
        except StorageError as error:
            return json_response({"error": str(error)}, 507)
        except ParaS2SError as error:
            return json_response({"error": str(error)}, 422)
        return studio.page(request, "talk_answers.html.j2", one=view_of(answered))

    async def typed(request: Request) -> Response:
        posted = await posted_record(request, _Typed)
        return await answer_with(request, lambda: conversation.ask(speak(posted.text, posted.style or None)))

    async def spoken(request: Request) -> Response:
        data, name = await posted_bytes(request, MAX_UPLOAD_BYTES), request.query_params.get("name", "the recording")
        style = request.query_params.get("style") or None
        return await answer_with(request, lambda: conversation.ask(read_question(data, name, style)))

    async def vote(request: Request) -> Response:
        posted = await posted_record(request, _Vote)
        return await answer_with(request, lambda: conversation.vote(posted.number, posted.better))

    async def names(request: Request) -> Response:
        posted = await posted_record(request, _Numbered)
        return await answer_with(request, lambda: conversation.show_names(posted.number))

    return [
        Route(PAGE, show),
        Route("/talk/clip/{number:int}/{name}", functools.partial(_clip, conversation)),
        Route("/api/talk/typed", typed, methods=["POST"]),
        Route("/api/talk/spoken", spoken, methods=["POST"]),
        Route("/api/talk/vote", vote, methods=["POST"]),
        Route("/api/talk/names", names, methods=["POST"]),
    ]


def read_question(data: bytes, name: str, style: str | None) -> TalkQuestion:
    """Read a recording of a question. Raises AudioError: no sound (a video), too long, or damaged; names the file."""
    return TalkQuestion(read_clip(data, max_duration_s=MAX_QUESTION_S, name=name[:80]), style)


def question_of(given: str, style: str | None) -> TalkQuestion:
    """Return a question from an audio file, or from spoken words. Raises AudioError: unreadable. DataError: not speakable."""
    if not names_file(given):
        return speak(given, style)
    return TalkQuestion(read_clip(Path(given), max_duration_s=MAX_QUESTION_S), style)


def _clip(conversation: Conversation, request: Request) -> Response:
    answered, name = conversation.find(request.path_params["number"]), request.path_params["name"]
    clips = {"question": answered.question.clip, **{str(index): answer.clip for index, answer in enumerate(answered.answers)}}
    if name not in clips or not len(clips[name].samples):
        raise DataError(f"{name!r}: there is no such clip")
    return Response(encode_clip(clips[name]), media_type="audio/wav", headers={"Cache-Control": "no-store"})


def view_of(answered: Answered) -> dict[str, Any]:
    """Return a question with its answers as the page shows them."""
    sides, named = [], answered.named
    for index, answer in enumerate(answered.answers):
        fields = None if answer.blueprint is None else fields_of(to_json(answer.blueprint))
        judgements: list[Judgement] = []
        for name, verdict in answer.verdicts:
            known = {"unscored": str(verdict), "cost_usd": None} if isinstance(verdict, BudgetError) else to_json(verdict)
            judgements.append(judgement_of(name, known, None))
        clip = f"{PAGE}/clip/{answered.number}/{index}" if answer.blueprint is not None else ""
        name = answer.side if named else f"Answer {'AB'[index]}"
        sides.append({"name": name, "text": answer.text, "clip": clip, "fields": fields, "judgements": judgements})
    words = answered.question.words or answered.transcript
    return {
        "number": answered.number,
        "clip": f"{PAGE}/clip/{answered.number}/question",
        "words": words,
        "transcript": "" if words == answered.transcript else answered.transcript or "(no words)",
        "style": answered.question.style,
        "sides": sides,
        "preferred": answered.preferred,
        "named": named,
        "no_vote": answered.no_vote,
    }
