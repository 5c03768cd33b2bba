"""People: who may use the management API and the dashboard, and how they log in."""

from __future__ import annotations

from typing import ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.ids import Instant
from dragoman.core.model.people import Person, Role


class AboutPerson(Command, frozen=True, gc=False, kw_only=True):
    """Outcome: the person. Refused with NOT_FOUND if there is none of this name."""

    name: str

    @property
    def subject(self) -> str:
        return self.name


class AddPerson(Command, frozen=True, gc=False, kw_only=True):
    """Let a person in. Outcome: the person. Refused with CONFLICT if the name is taken."""

    action: ClassVar = "user.add"
    new: Person

    @property
    def subject(self) -> str:
        return self.new.id


class RemovePerson(AboutPerson, frozen=True, gc=False, kw_only=True):
    """The person's token, login link and sessions end at once."""

    action: ClassVar = "user.remove"


class SetPersonToken(AboutPerson, frozen=True, gc=False, kw_only=True):
    """A new API token; the old one ends, and with it all sessions."""

    action: ClassVar = "user.token"
    token_hash: str


class SetPersonRole(AboutPerson, frozen=True, gc=False, kw_only=True):
    """The person has another role from now on, also in the sessions they have."""

    action: ClassVar = "user.role"
    role: Role


class OfferLogin(AboutPerson, frozen=True, gc=False, kw_only=True):
    """A login link, by the hash of its code. It replaces the one before."""

    action: ClassVar = "user.offer_login"
    login_hash: str
    until: Instant


class LogIn(Command, frozen=True, gc=False, kw_only=True):
    """A person opens a login link. Outcome: the person. The code counts once, also over a restart; one that is wrong,
    used or too old is refused with UNAUTHENTICATED."""

    action: ClassVar = "user.login"
    login_hash: str


class LogInByProvider(Command, frozen=True, gc=False, kw_only=True):
    """An identity provider vouches for a person. Outcome: the person, who is added at the first login.

    `vouched` is what the provider calls them for good, `name` what they are called here at the first login, `role` what
    the provider says they may do. Refused with FORBIDDEN where a new person has no role, with CONFLICT where the name
    is that of another person or of an agent."""

    action: ClassVar = "user.login"
    vouched: str
    name: str
    role: Role | None


class RecordLogin(Command, frozen=True, gc=False, kw_only=True):
    """A browser was logged in by other proof than a stored link: a token, or the link that the hub printed. Outcome:
    the person (`Command.person`), None for the administrator."""

    action: ClassVar = "user.login"


class EndSessions(AboutPerson, frozen=True, gc=False, kw_only=True):
    """All sessions of a person end."""

    action: ClassVar = "user.logout"
