"""A2acp's handler: HTTP and WebSocket share it.

A message goes one way: decode, authenticate, judge, command, outcome, response. Each step refuses with the document's
code:

    decode         1  size, depth, strict JSON, version, shape (the codec)        SCHEMA_MISMATCH
    authenticate   2  its token: signature, times, audience, issuer, subject      AUTH_FAILED
                   3  messages only of, or only to, the broker                    SCHEMA_MISMATCH
                   4  its time: not older than 5 minutes, not 60 s ahead          AUTH_FAILED
    judge          5  its contract: parties, standing, intent, encryption, key    CONTRACT_VIOLATION,
                                                                                  SECURITY_POLICY_VIOLATION
                   6  the capabilities that the intent requires                   AUTH_FAILED
                   7  its payload opens                                           SECURITY_POLICY_VIOLATION
    command        8  rate limits; that the id is new; the contract's schema      RATE_LIMIT_EXCEEDED, AUTH_FAILED,
                                                                                  CONTRACT_VIOLATION

Steps 1 to 4 need nothing but memory; the transport records their refusals, as in every protocol. `_judged` records
those of 5 to 7, for both transports; the hub, in one commit, those of 8. A refusal names places, never their content.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import ADMIN, HUB, AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.ports import Files, Intake, Store, Vault
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.messages.tasks import Json
from dragoman.protocols.a2acp import codec, errors, intents
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.types import MESSAGE_BYTES, PROTOCOL, UNKNOWN_AGENT, Message, MessageType
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.server.a2acp import frames, outbound
from dragoman.server.a2acp.contract_keys import ContractKeys
from dragoman.server.a2acp.contracts import moment, party_of, rotated, terminated
from dragoman.server.a2acp.correlation import Correlations
from dragoman.server.a2acp.frames import Broker, message_id
from dragoman.server.a2acp.inbound import InboundMessage
from dragoman.server.a2acp.judge import Judge, reads_tasks
from dragoman.server.a2acp.outbound import ends_in_pieces, wanted_contract
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.handler import HttpHandler
from dragoman.server.limits import Limits
from dragoman.server.session import Invalid, LookUp, Request, read_account
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.role import Role


class About(msgspec.Struct, frozen=True):
    """What an answer is about: a message, or `broken`, one that cannot be read; and its sender, if authenticated."""

    agent: Agent | None = None
    message: Message | None = None
    broken: A2acpError | None = None

    @property
    def id(self) -> str | None:
        return self.message.message_id if self.message else self.broken.about if self.broken else None

    @property
    def thread(self) -> str | None:
        return self.message.thread if self.message else self.broken.thread if self.broken else None

    @property
    def sender(self) -> Party | None:
        return self.message.source_agent if self.message else self.broken.sender if self.broken else None

    @property
    def asks(self) -> bool:
        """Whether the sender gets an answer when it is refused: nothing answers an error."""
        if self.message is not None:
            return self.message.message_type is not MessageType.ERROR
        return self.broken is None or not self.broken.is_about_error


class A2acpHandler(HttpHandler):
    """One for all of a2acp's endpoints."""

    protocol = PROTOCOL

    def __init__(
        self, hub: Intake, store: Store, auth: AuthService, vault: Vault, *, limits: Limits, files: Files | None = None
    ) -> None:
        super().__init__(hub, store, limits=limits, files=files)
        self.auth = auth
        self.keys = ContractKeys(vault)
        self.sent = Correlations(hub, store, self.party)
        self.broker = Broker(
            agent=auth.broker,
            party=self.party,
            called=self.sent.name,
            token=auth.token_for,
            shut=self.keys.shut,
            grant=self.keys.grant,
        )
        self._judge = Judge(hub, store, files, self.broker, self.keys, self.sent)

    def party(self, id: AgentId) -> Party:
        """An agent as others see it; the broker for people."""
        agent = self.hub.agent(id)
        if agent is not None:
            return party_of(agent)
        if id in (ADMIN, HUB, "", self.auth.broker.agent_id):
            return self.auth.broker
        return Party(agent_id=id, domain="unknown", version="0.0.0")

    # -- in: decode, authenticate, judge

    def decode(self, data: bytes, link: Agent | None, *, traceparent: str | None = None) -> LookUp | Invalid:
        """A message to be judged, or the fault to answer with. Never raises. `link`: the agent that the connection has
        authenticated, if any."""
        about = About(link)
        try:
            message, tree = codec.read(data, trust_label=True)
            about = About(link, message)
            agent, granted = self.auth.verify(message, link)
            about = About(agent, message)
            now = self.hub.now()
            misspoken = intents.misspoken(message, Role.AGENT, party_of(agent), self.auth.broker)
            if misspoken is not None:
                raise refuse(Kind.INVALID, misspoken[1], field=misspoken[0])
            untimely = intents.untimely(message.timestamp, moment(now))
            if untimely is not None:
                raise errors.refused(untimely)
        except A2acpError as error:
            return Invalid(errors.fault_of(error), error.about, About(link, broken=error))
        except Refused as refused:
            return Invalid(refused.fault, about.id, about)
        inbound = InboundMessage(agent, message, tree, now, granted=granted, traceparent=traceparent, size=len(data))
        lane = None if message.message_type is MessageType.REQUEST else message.correlation_id
        request = Request(message.message_id, about, lane=lane)
        return LookUp(partial(self._judged, inbound), request, after_commits=reads_tasks(message))

    async def _judged(self, inbound: InboundMessage) -> Sequence[bytes] | Command:
        """The command of a message, or the answer to one that only reads; raises `Refused`, recorded."""
        try:
            found = await self._judge.command_of(inbound)
        except Refused as refused:
            agent, id = inbound.agent.id, inbound.message.message_id
            await self.refusals.record(
                refused_as(refused.fault), refused.fault, principal=agent, protocol=PROTOCOL, about=id
            )
            raise
        return found if isinstance(found, Command) else [self._reply(inbound.message, found)]

    # -- the broker's answers

    def encode_answer(self, about: About, outcome: object) -> bytes | None:
        """The broker's answer to a committed command, where it has one at once."""
        message = about.message
        if not isinstance(outcome, Contract):
            return None
        self.keys.terms(outcome)
        if message is None or message.message_type is not MessageType.REQUEST:
            return None
        if message.intent == intents.TERMINATE:
            return self._reply(message, terminated(outcome, message.thread))
        if message.intent == intents.ROTATE:
            key = self.keys.grant(outcome, AgentId(message.source_agent.agent_id))
            return self._reply(message, rotated(outcome, key, message.thread))
        return None

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        """The error message about a refused one."""
        about = context if isinstance(context, About) else About(agent)
        agent, to = about.agent, about.sender or UNKNOWN_AGENT
        if agent is not None and to.agent_id != agent.id:
            to = party_of(agent)  # the agent that is connected, whatever the message says of its sender
        # A caller that is not authenticated gets no token of the broker's for the agent that it names.
        audience = UNKNOWN_AGENT.agent_id if agent is None else agent.id
        intent = about.message.intent if about.message else None
        return self._frame("error", intent, errors.refusal_of(fault).payload(about.thread), to, audience)

    def _reply(self, asked: Message, payload: Json) -> bytes:
        return self._frame("response", asked.intent, payload, asked.source_agent, asked.source_agent.agent_id)

    def _frame(self, kind: str, intent: str | None, payload: Json, to: Party, audience: str) -> bytes:
        id, token = message_id(self.hub.mint()), self.auth.token_for(audience)
        return frames.frame(
            kind, intent, payload, id=id, now=self.hub.now(), source=self.auth.broker, target=to, token=token
        )

    def status_of(self, fault: Fault) -> int:
        return errors.status_of(fault)

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        if isinstance(error, A2acpError):
            return errors.fault_of(error)
        return Fault(kind=Kind.TOO_LARGE, message=error.what, facts={"stage": "size", "limit": MESSAGE_BYTES})

    def json(self, data: bytes) -> Json:
        try:
            return codec.parse(data)
        except A2acpError as error:
            raise Refused(errors.fault_of(error)) from None

    # -- outgoing messages

    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        await self.sent.recall(agent.id)
        wanted = wanted_contract(outgoing)
        row = None if wanted is None else await self.hub.contract(wanted)
        if row is not None:
            self.keys.terms(row)
        whole: str | None = None
        if ends_in_pieces(outgoing):
            whole = (await read_account(self.store, outgoing.delivery.task, outgoing.event.seq)).output
        return (self._encoded(outgoing, agent, now, row, whole),)

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        """The same, where nothing must be read for it; else None."""
        if not self.sent.remembers(agent.id) or ends_in_pieces(outgoing):
            return None
        wanted = wanted_contract(outgoing)
        row = None if wanted is None else self.keys.known(wanted)
        if wanted is not None and row is None:
            return None
        return (self._encoded(outgoing, agent, now, row, None),)

    def _encoded(
        self, outgoing: Outgoing, agent: Agent, now: Instant, row: Contract | None, whole: str | None
    ) -> bytes:
        kind, id = outgoing.delivery.kind, message_id(outgoing.delivery.id)
        if kind is MessageKind.PROPOSAL:
            self.sent.propose(agent.id, outgoing.question.id, id)
        elif outgoing.about_task is not None and outgoing.about_task.owner == agent.id:
            self.sent.give(outgoing.task, id if kind is MessageKind.WORK else None)
        return outbound.wire_of(outgoing, agent.id, now, self.broker, row, whole=whole)


def refused_as(fault: Fault) -> str:
    """The verb in the audit record: attempts to send personal data in clear have their own (D13)."""
    return "pii.refused" if fault.kind is Kind.FORBIDDEN and fault.facts.get("pii") else "a2acp.message"
