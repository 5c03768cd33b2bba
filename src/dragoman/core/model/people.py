"""A person as the hub knows one: a name, a role, and what proves who they are.

    role       may
    ---------  ----------------------------------------------------------------------------------
    viewer     read everything that the management API shows, save the lists of people and of keys
    operator   also act on work: answer, retry, cancel, redrive, pause, submit, call
    admin      also act on the hub: agents, tokens, people, policies, keys, backups; list people and keys

The holder of the hub's admin token is an admin without a row. The hub stores hashes only: of the API token, and of the
code in a login link, which counts once and not for long. `sessions` is part of every session cookie: when it grows, all
cookies of the person end.
"""

from __future__ import annotations

import enum

import msgspec

from dragoman.core.ids import Instant


class Role(enum.StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Whether a person of this role may do what one of the other role may."""
        return RANK[self] >= RANK[other]


RANK = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}

LONGEST_NAME = 100


class Person(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """`id` is the name. `subject` is what an identity provider calls the person, where one vouches for them."""

    id: str
    role: Role
    created_at: Instant
    token_hash: str | None = None
    login_hash: str | None = None
    login_until: Instant | None = None
    sessions: int = 0
    subject: str | None = None
    last_login: Instant | None = None
