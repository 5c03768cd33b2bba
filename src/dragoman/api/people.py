"""What waits for a person: questions (exactly one answer counts; the core ensures that) and dead letters."""

from __future__ import annotations

import msgspec

from dragoman.api.bodies import AnswerIn, DeadLettersQuery, EditedIn, Nothing, QuestionsQuery
from dragoman.api.context import PROTOCOL, Call, Context, Plain, page_of
from dragoman.api.events import TaskRow, task_row
from dragoman.api.store_reads import find_dead_letter, find_question, find_task, whole_task
from dragoman.core.commands import Answer, Discard, Redrive
from dragoman.core.ids import ADMIN
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.tasks import Question
from dragoman.core.queries import DeadLetterOut, QuestionOut, TaskOut, dead_letter_out, is_hidden, question_out


class AskedAbout(TaskRow, frozen=True, kw_only=True):
    """The task around a question. `requested_by` is who gave it to the hub."""

    requested_by: str


class QuestionList(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks` are those that the questions are about, by their ids."""

    questions: tuple[QuestionOut, ...]
    next: str | None
    tasks: dict[str, AskedAbout]


async def list_questions(context: Context, call: Call[QuestionsQuery, None]) -> QuestionList:
    query = call.query
    task = None if query.task is None else (await find_task(context, query.task, field="task")).id
    questions = await context.store.questions(
        status=query.status, task=task, after=query.cursor or "", limit=query.limit + 1
    )
    page, on = page_of(questions, query.limit, lambda one: one.id)
    tasks: dict[str, AskedAbout] = {}
    for id in dict.fromkeys(one.task for one in page if one.task is not None):
        found = await context.store.task(id)
        if found is not None:
            row = msgspec.structs.asdict(task_row(context, found))
            tasks[id] = AskedAbout(**row, requested_by=found.origin.principal)
    return QuestionList(questions=tuple(map(question_out, page)), next=on, tasks=tasks)


async def show_question(context: Context, call: Plain) -> QuestionOut:
    return question_out(await find_question(context, call.id))


async def answer_question(context: Context, call: Call[None, AnswerIn]) -> QuestionOut:
    question = await find_question(context, call.id)
    given = call.body
    answered: Question = await context.execute(
        call,
        Answer(principal=ADMIN, protocol=PROTOCOL, question=question.id, answer=given.answer, note=given.note or None),
    )
    return question_out(answered)


PERSONAL = msgspec.Raw(b'{"personal":true}')


class DeadLetterList(msgspec.Struct, frozen=True, kw_only=True):
    deadletters: tuple[DeadLetterOut, ...]
    next: str | None


async def list_dead_letters(context: Context, call: Call[DeadLettersQuery, None]) -> DeadLetterList:
    query = call.query
    task = None if query.task is None else (await find_task(context, query.task, field="task")).id
    found = await context.store.dead_letters(task=task, after=query.cursor or None, limit=query.limit + 1)
    page, on = page_of(found, query.limit, lambda one: one.id)
    return DeadLetterList(deadletters=tuple(map(dead_letter_out, page)), next=on)


async def show_dead_letter(context: Context, call: Plain) -> DeadLetterOut:
    dead = await find_dead_letter(context, call.id)
    return await _with_body(context, dead)


async def _with_body(context: Context, dead: DeadLetter) -> DeadLetterOut:
    """With its content, unless that is personal: for work, the input that a person may want to edit."""
    if dead.direct_message is not None:
        return dead_letter_out(dead, body=PERSONAL if dead.direct_message.personal else dead.direct_message.raw)
    found = await context.store.events(dead.task, after=dead.event - 1, limit=1)
    task = await context.store.task(dead.task)
    hidden = bool(found) and found[0].personal and (task is None or is_hidden(task))
    return dead_letter_out(dead, body=PERSONAL if hidden else found[0].body if found else None)


async def redrive(context: Context, call: Call[None, EditedIn]) -> TaskOut | DeadLetterOut:
    wanted = call.body
    dead = await find_dead_letter(context, call.id)
    edited = None if wanted.input is None else msgspec.json.encode(wanted.input)
    sent = await context.execute(call, Redrive(principal=ADMIN, protocol=PROTOCOL, dead_letter=dead.id, input=edited))
    if isinstance(sent, DeadLetter):
        return dead_letter_out(sent)
    return await whole_task(context, sent)


async def discard(context: Context, call: Call[None, Nothing]) -> DeadLetterOut:
    dead = await find_dead_letter(context, call.id)
    await context.execute(call, Discard(principal=ADMIN, protocol=PROTOCOL, dead_letter=dead.id))
    return dead_letter_out(dead)
