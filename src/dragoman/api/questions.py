"""Questions to people: list, look at, answer. Exactly one answer counts; the core sees to that."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.bodies import AnswerIn, QuestionsQuery, read_body, read_query
from dragoman.api.context import Context
from dragoman.api.route import respond
from dragoman.api.store_reads import find_question, find_task
from dragoman.api.tasks import PROTOCOL
from dragoman.core.commands import Answer
from dragoman.core.ids import ADMIN
from dragoman.core.model.tasks import Question
from dragoman.core.queries import QuestionOut, question_out


class QuestionList(msgspec.Struct, frozen=True, kw_only=True):
    questions: tuple[QuestionOut, ...]
    next: str | None


async def listing(context: Context, request: Request) -> Response:
    query = read_query(request, QuestionsQuery)
    task = None if query.task is None else (await find_task(context, query.task, field="task")).id
    questions = await context.store.questions(
        status=query.status, task=task, after=query.cursor or "", limit=query.limit + 1
    )
    page = questions[: query.limit]
    on = page[-1].id if len(questions) > query.limit else None
    return respond(200, QuestionList(questions=tuple(map(question_out, page)), next=on))


async def one(context: Context, request: Request) -> Response:
    return respond(200, question_out(await find_question(context, request.path_params["id"])))


async def answer(context: Context, request: Request) -> Response:
    said = await read_body(context, request, AnswerIn)
    question = await find_question(context, request.path_params["id"])
    answered: Question = await context.intake.execute(
        Answer(principal=ADMIN, protocol=PROTOCOL, question=question.id, answer=said.answer)
    )
    return respond(200, question_out(answered))
