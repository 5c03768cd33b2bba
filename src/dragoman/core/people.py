"""People are added and removed, get tokens, and log in."""

from __future__ import annotations

import hmac

from msgspec.structs import replace

from dragoman.core.commands.people import (
    AddPerson,
    EndSessions,
    LogIn,
    LogInByProvider,
    OfferLogin,
    RecordLogin,
    RemovePerson,
    SetPersonRole,
    SetPersonToken,
)
from dragoman.core.model.people import LONGEST_NAME, Person
from dragoman.core.protocol_capabilities import RESERVED
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, refuse


def add(work: Work, command: AddPerson) -> Person:
    check_name(work, command.new.id)
    person = replace(command.new, created_at=work.now)
    work.put(person)
    return person


def check_name(work: Work, name: str) -> None:
    if not is_name(name):
        raise refuse(Kind.INVALID, f"a name has 1 to {LONGEST_NAME} printable characters, and no slash", field="name")
    if work.person(name) is not None or work.agent(name) is not None or name in RESERVED:  # type: ignore[arg-type]
        raise refuse(Kind.CONFLICT, f"the name {name!r} is taken", next="choose another", field="name")


def is_name(name: str) -> bool:
    """Names are shown in one line, and are a part of addresses."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip(" .") and "/" not in name


def known(work: Work, name: str) -> Person:
    person = work.person(name)
    if person is None:
        raise refuse(Kind.NOT_FOUND, f"there is no user {name!r}", next="see `dragoman user ls`", field="name")
    return person


def remove(work: Work, command: RemovePerson) -> Person:
    person = known(work, command.name)
    work.remove(person)
    return person


def set_token(work: Work, command: SetPersonToken) -> Person:
    person = known(work, command.name)
    return _put(work, replace(person, token_hash=command.token_hash, sessions=person.sessions + 1))


def set_role(work: Work, command: SetPersonRole) -> Person:
    return _put(work, replace(known(work, command.name), role=command.role))


def offer_login(work: Work, command: OfferLogin) -> Person:
    return _put(work, replace(known(work, command.name), login_hash=command.login_hash, login_until=command.until))


def log_in(work: Work, command: LogIn) -> Person:
    for person in work.people():
        if person.login_hash is not None and hmac.compare_digest(person.login_hash, command.login_hash):
            if person.login_until is not None and person.login_until > work.now:
                return _put(work, replace(person, login_hash=None, login_until=None, last_login=work.now))
            break
    raise refuse(
        Kind.UNAUTHENTICATED,
        "this login link was used already or is too old",
        next="make a new one with `dragoman user login NAME`",
    )


def log_in_by_provider(work: Work, command: LogInByProvider) -> Person:
    for person in work.people():
        if person.subject == command.vouched:
            return _put(work, replace(person, role=command.role or person.role, last_login=work.now))
    if command.role is None:
        raise refuse(Kind.FORBIDDEN, "the identity provider gives this person no role", next="ask who looks after it")
    check_name(work, command.name)
    person = Person(
        id=command.name, role=command.role, created_at=work.now, subject=command.vouched, last_login=work.now
    )
    return _put(work, person)


def record_login(work: Work, command: RecordLogin) -> Person | None:
    if command.person is None:
        return None
    return _put(work, replace(known(work, command.person), last_login=work.now))


def end_sessions(work: Work, command: EndSessions) -> Person:
    person = known(work, command.name)
    return _put(work, replace(person, sessions=person.sessions + 1))


def _put(work: Work, person: Person) -> Person:
    work.put(person)
    return person
