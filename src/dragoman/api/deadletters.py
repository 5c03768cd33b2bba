"""Dead letters: what could not be done or delivered, and what a person makes of it."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.bodies import EditedIn, LettersQuery, Nothing, read_body, read_query
from dragoman.api.desk import Desk
from dragoman.api.endpoint import respond
from dragoman.api.reading import find_letter, find_task, whole_task
from dragoman.api.tasks import PROTOCOL
from dragoman.core.commands import Discard, Redrive
from dragoman.core.ids import ADMIN
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.queries import DeadLetterOut, dead_letter_out, is_hidden

SHUT = msgspec.Raw(b'{"personal":true}')


class DeadLetterList(msgspec.Struct, frozen=True, kw_only=True):
    deadletters: tuple[DeadLetterOut, ...]
    next: str | None


async def listing(desk: Desk, request: Request) -> Response:
    query = read_query(request, LettersQuery)
    task = None if query.task is None else (await find_task(desk, query.task, field="task")).id
    letters = await desk.store.dead_letters(task=task, after=query.cursor or None, limit=query.limit + 1)
    page = letters[: query.limit]
    on = page[-1].id if len(letters) > query.limit else None
    return respond(200, DeadLetterList(deadletters=tuple(map(dead_letter_out, page)), next=on))


async def one(desk: Desk, request: Request) -> Response:
    letter = await find_letter(desk, request.path_params["id"])
    return respond(200, await _with_body(desk, letter))


async def _with_body(desk: Desk, letter: DeadLetter) -> DeadLetterOut:
    """With what it would have told, unless that is personal: for work, the input one may want to edit."""
    if letter.letter is not None:
        return dead_letter_out(letter, body=SHUT if letter.letter.personal else letter.letter.body)
    found = await desk.store.events(letter.task, after=letter.event - 1, limit=1)
    task = await desk.store.task(letter.task)
    hidden = bool(found) and found[0].personal and (task is None or is_hidden(task))
    return dead_letter_out(letter, body=SHUT if hidden else found[0].body if found else None)


async def redrive(desk: Desk, request: Request) -> Response:
    wish = await read_body(desk, request, EditedIn, optional=True)
    letter = await find_letter(desk, request.path_params["id"])
    edited = None if wish.input is None else msgspec.json.encode(wish.input)
    sent = await desk.intake.execute(Redrive(principal=ADMIN, protocol=PROTOCOL, letter=letter.id, input=edited))
    if isinstance(sent, DeadLetter):
        return respond(202, dead_letter_out(sent))
    return respond(202, await whole_task(desk, sent))


async def discard(desk: Desk, request: Request) -> Response:
    await read_body(desk, request, Nothing, optional=True)
    letter = await find_letter(desk, request.path_params["id"])
    await desk.intake.execute(Discard(principal=ADMIN, protocol=PROTOCOL, letter=letter.id))
    return respond(200, dead_letter_out(letter))
