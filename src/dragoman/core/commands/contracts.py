"""Contracts: handshakes, their answers and ends, and which domains may ask which."""

from __future__ import annotations

from typing import Any, ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.ids import AgentId, QuestionId, SessionId
from dragoman.core.lookups import (
    Lookup,
    QuestionById,
)
from dragoman.core.model.contracts import Secret


class ShakeHands(Command, frozen=True, gc=False, kw_only=True):
    """An agent wants to ask another one for work of an intent, on agreed terms. Outcome: the question to the target.

    Its answer is the contract's id, or why there is none. `request_schema` is what the source will send and must fit
    what the target takes; `response_schema` is what the source can read. `granted` is what its credential lets it ask
    for. With `collaboration` the terms of that relation are renewed. `secret` is there where messages are to be
    encrypted; the caller of the command made it. An agent whose protocol has no handshake agrees to what it declared.
    """

    action: ClassVar = "contract.propose"
    request_id: str
    digest: str
    target: AgentId
    intent: str
    domain: str
    version: str
    target_version: str | None = None
    request_schema: Any = None
    response_schema: Any = None
    granted: tuple[str, ...] = ()
    end_to_end: bool = False
    encrypt: bool = False
    secret: Secret | None = None
    collaboration: str | None = None
    correlation_id: str | None = None
    awaited: SessionId | None = None
    """As with `Submit`: the outcome goes to the request that waits for it."""

    @property
    def subject(self) -> str:
        return f"{self.target}/{self.intent}"


class AnswerHandshake(Command, frozen=True, gc=False, kw_only=True):
    """The target agrees or not. Outcome: the question. After a yes the contract is in force in the same commit."""

    action: ClassVar = "contract.agree"
    question: QuestionId
    accepted: bool
    reason: str = ""
    public_key: str | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)

    @property
    def subject(self) -> str:
        return self.question


class EndContract(Command, frozen=True, gc=False, kw_only=True):
    """A party ends a collaboration; the other is notified. Outcome: the contract."""

    action: ClassVar = "contract.end"
    collaboration: str
    reason: str = ""

    @property
    def subject(self) -> str:
        return self.collaboration


class RenewContract(Command, frozen=True, gc=False, kw_only=True):
    """A person lets a contract go on for longer, on the terms that both agents agreed to; both are notified. `lasts` is
    how long from now, without it as long as a new contract. Outcome: the contract."""

    action: ClassVar = "contract.renew"
    collaboration: str
    lasts: int | None = None

    @property
    def subject(self) -> str:
        return self.collaboration


class RotateKey(Command, frozen=True, gc=False, kw_only=True):
    """A party wants a new key for a collaboration; both get it. Outcome: the contract."""

    action: ClassVar = "contract.rotate"
    collaboration: str
    secret: Secret

    @property
    def subject(self) -> str:
        return self.collaboration


class SetDomainPolicy(Command, frozen=True, gc=False, kw_only=True):
    """A person sets whether agents of one domain may ask those of another; `allow` None removes the policy. Outcome:
    the policy."""

    action: ClassVar = "policy.domains"
    source: str
    target: str
    allow: bool | None = True
    intents: tuple[str, ...] = ()
    encrypt: bool = False

    @property
    def subject(self) -> str:
        return f"{self.source}/{self.target}"
