"""The handshake, as each of its three parties lives through it: a table each, and a value that moves along it.

    source            broker                                                target
    ----------------  ----------------------------------------------------  ------------------------------
    1 initiate   ---> REQUESTED
                      2 validate: token, target, intent; policy, schemas
                      3 OFFERED     -------------------- offer ------------> OFFERED
                                                                             4 accept or reject
                      VALIDATING  <------------------- decision ----------- ANSWERED
                      the contract is validated and stored
    AGREED      <---  5 AGREED      ------------------ established -------> AGREED

The source waits 5 seconds for all of it, and so does the broker for its part; validating the contract may take 2 of
them. Whoever runs out of time is EXPIRED, and the source gets TIMEOUT. A rejection is CONTRACT_VIOLATION, with the
target's reason: nothing in the protocol is broken, but there are no terms.

Time comes as a value. What comes too late, twice, or from somebody else changes nothing.
"""

from __future__ import annotations

import enum
from datetime import datetime, timedelta

from msgspec import structs

from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import HANDSHAKE_SECONDS, VALIDATION_SECONDS, Date, Id, Name, Record, Seconds
from dragoman.wire.errors import LocalProtocolError
from dragoman.wire.machine import Table


class Party(enum.StrEnum):
    SOURCE = "source"
    BROKER = "broker"
    TARGET = "target"


class Stage(enum.StrEnum):
    REQUESTED = "requested"
    OFFERED = "offered"
    ANSWERED = "answered"
    VALIDATING = "validating"
    AGREED = "agreed"
    REJECTED = "rejected"
    REFUSED = "refused"
    EXPIRED = "expired"


class Step(enum.StrEnum):
    OFFER = "offer"
    ACCEPT = "accept"
    REJECT = "reject"
    AGREE = "agree"
    REFUSE = "refuse"
    EXPIRE = "expire"


_OVER: dict[Stage, dict[Step, Stage]] = {Stage.AGREED: {}, Stage.REFUSED: {}, Stage.EXPIRED: {}}

TABLES: dict[Party, Table[Stage, Step]] = {
    Party.SOURCE: Table(
        {
            Stage.REQUESTED: {
                Step.AGREE: Stage.AGREED,
                Step.REFUSE: Stage.REFUSED,
                Step.EXPIRE: Stage.EXPIRED,
            },
            **_OVER,
        },
        start=Stage.REQUESTED,
    ),
    Party.BROKER: Table(
        {
            Stage.REQUESTED: {
                Step.OFFER: Stage.OFFERED,
                Step.REFUSE: Stage.REFUSED,
                Step.EXPIRE: Stage.EXPIRED,
            },
            Stage.OFFERED: {
                Step.ACCEPT: Stage.VALIDATING,
                Step.REJECT: Stage.REJECTED,
                Step.REFUSE: Stage.REFUSED,
                Step.EXPIRE: Stage.EXPIRED,
            },
            Stage.VALIDATING: {
                Step.AGREE: Stage.AGREED,
                Step.REFUSE: Stage.REFUSED,
                Step.EXPIRE: Stage.EXPIRED,
            },
            Stage.REJECTED: {},
            **_OVER,
        },
        start=Stage.REQUESTED,
    ),
    Party.TARGET: Table(
        {
            Stage.OFFERED: {
                Step.ACCEPT: Stage.ANSWERED,
                Step.REJECT: Stage.REJECTED,
                Step.EXPIRE: Stage.EXPIRED,
            },
            Stage.ANSWERED: {
                Step.AGREE: Stage.AGREED,
                Step.REFUSE: Stage.REFUSED,
                Step.EXPIRE: Stage.EXPIRED,
            },
            Stage.REJECTED: {},
            **_OVER,
        },
        start=Stage.OFFERED,
    ),
}


class Handshake(Record, frozen=True, kw_only=True):
    """One handshake, as one party sees it. Immutable: `after` gives it as it is then.

    `handshake_id` is the id of the source's message, which all three know.
    """

    handshake_id: Id
    party: Party
    source_id: Id
    target_id: Id
    intent: Name
    started: Date
    stage: Stage
    since: Date
    allowed: Seconds = HANDSHAKE_SECONDS
    validation: Seconds = VALIDATION_SECONDS
    reason: str = ""

    @property
    def is_over(self) -> bool:
        return not TABLES[self.party].rows[self.stage]

    @property
    def due(self) -> datetime | None:
        """When its time is up, while it is not over."""
        if self.is_over:
            return None
        end = self.started + timedelta(seconds=self.allowed)
        if self.stage is Stage.VALIDATING:
            return min(end, self.since + timedelta(seconds=self.validation))
        return end

    def is_late(self, now: datetime) -> bool:
        due = self.due
        return due is not None and now >= due

    def after(self, step: Step, now: datetime, reason: str = "") -> Handshake:
        """The handshake after a step of ours; raises `LocalProtocolError` where the table has none."""
        stage = self._next(step, now)
        if stage is None:
            raise LocalProtocolError(
                f"handshake {self.handshake_id} is {self.stage}; {step} comes too late or too soon"
            )
        return structs.replace(self, stage=stage, since=now, reason=reason)

    def heard(self, step: Step, now: datetime, *, by: str, reason: str = "") -> Handshake | None:
        """The handshake after what a peer said, or None where it changes nothing: late, repeated, or not theirs."""
        speaker = self.target_id if self.party is Party.BROKER else None
        stage = self._next(step, now) if speaker in (None, by) else None
        return None if stage is None else structs.replace(self, stage=stage, since=now, reason=reason)

    def _next(self, step: Step, now: datetime) -> Stage | None:
        if (step is not Step.EXPIRE and self.is_late(now)) or (step is Step.EXPIRE and not self.is_late(now)):
            return None
        return TABLES[self.party].after(self.stage, step)

    @property
    def refusal(self) -> Refusal | None:
        """What the source is told where the handshake led to nothing; REFUSED has a reason of its own."""
        details = {"handshake_id": self.handshake_id, "target_agent_id": self.target_id, "intent": self.intent}
        if self.stage is Stage.EXPIRED:
            what = f"{self.target_id} did not agree within {self.allowed:g} seconds"
            return Refusal(code=Code.TIMEOUT, message=what, details=details)
        if self.stage is Stage.REJECTED:
            what = f"{self.target_id} rejected the handshake: {self.reason or 'it gave no reason'}"
            return Refusal(code=Code.CONTRACT_VIOLATION, message=what, details={**details, "accepted": False})
        return None


def begin(
    party: Party,
    handshake_id: str,
    now: datetime,
    *,
    source_id: str,
    target_id: str,
    intent: str,
    allowed: float = HANDSHAKE_SECONDS,
    validation: float = VALIDATION_SECONDS,
) -> Handshake:
    """A new handshake at the start of its party's table."""
    return Handshake(
        handshake_id=handshake_id,
        party=party,
        source_id=source_id,
        target_id=target_id,
        intent=intent,
        started=now,
        stage=TABLES[party].start,
        since=now,
        allowed=allowed,
        validation=validation,
    )
