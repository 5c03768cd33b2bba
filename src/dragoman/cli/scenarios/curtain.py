"""The end of a play: nothing of it is left at the hub that somebody would have to look after.

while the players are there    what they asked for and nobody did is cancelled, their contracts end, and each takes
                               what the hub still has for it
when they have been put out    the dead letters of the play are discarded, and nobody else's
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dragoman.cli import printing, task_text
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.hubclient import Hub

DOOR = "/a2acp"
MOST = 50
"""Messages that are taken at once."""


@contextmanager
def at_rest(hub: Hub, secrets: Mapping[str, str]) -> Iterator[None]:
    """Around the play; `secrets` by the players' ids."""
    try:
        yield
    finally:
        _quietly(lambda: _rest(hub, secrets))


@contextmanager
def no_dead_letters(hub: Hub, players: Collection[str]) -> Iterator[None]:
    """Around all that lets the players in and out."""
    before = {letter["id"] for letter in _letters(hub, players)}
    try:
        yield
    finally:
        _quietly(lambda: _discard(hub, players, before))


def _quietly(clear: Callable[[], None]) -> None:
    try:
        clear()
    except CommandError as failure:  # how the play went counts more
        printing.note(f"  what the play left behind could not be taken away ({failure.sentence})")


def _rest(hub: Hub, secrets: Mapping[str, str]) -> None:
    for player in secrets:
        for task in list(_pages(hub, "tasks", principal=player)):
            if task["status"] not in task_text.FINAL:
                _end(hub, "tasks", task["id"], "cancel")
        for contract in list(_pages(hub, "contracts", agent=player)):
            if contract["standing"] == "active":
                _end(hub, "contracts", contract["id"], "end")
    for secret in secrets.values():
        own = hub.under(secret)
        while held := own.ask("GET", "messages", query={"max": MOST}, base=DOOR)["messages"]:
            own.ask("POST", "ack", body={"delivery_ids": [one["delivery_id"] for one in held]}, base=DOOR)


def _end(hub: Hub, *what: str) -> None:
    try:
        hub.post(*what, body={"reason": "the play is over"})
    except CommandError as failure:
        if failure.code is not Exit.NOT_ALLOWED:  # it ended by itself meanwhile
            raise


def _discard(hub: Hub, players: Collection[str], before: Collection[str]) -> None:
    for letter in list(_letters(hub, players)):
        if letter["id"] not in before:
            hub.post("deadletters", letter["id"], "discard")


def _letters(hub: Hub, players: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """Of what is for a player, or was asked by one."""
    asked = {task["id"] for player in players for task in _pages(hub, "tasks", principal=player)}
    return (one for one in _pages(hub, "deadletters") if one["receiver"] in players or one["task_id"] in asked)


def _pages(hub: Hub, what: str, **query: Any) -> Iterator[Mapping[str, Any]]:
    cursor = None
    while True:
        page = hub.get(what, limit=500, cursor=cursor, **query)
        yield from page[what]
        cursor = page.get("next")
        if not cursor:
            return
