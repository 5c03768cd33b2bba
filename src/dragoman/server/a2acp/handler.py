"""A2acp's handler: who sends, what a message means, and how a refusal is encoded.

HTTP and WebSocket share it. A message passes, in this order; each step refuses with the document's code:

    1  size, depth, strict JSON, version, shape (the codec)             SCHEMA_MISMATCH
    2  its token: signature, times, audience, issuer, subject           AUTH_FAILED
    3  what only the broker says, or is only said to the broker         SCHEMA_MISMATCH
    4  its time: not older than 5 minutes, not 60 s ahead               AUTH_FAILED
    5  its contract: parties, standing, intent, encryption, key         CONTRACT_VIOLATION, SECURITY_POLICY_VIOLATION
    6  the capabilities that the intent requires                        AUTH_FAILED
    7  its payload opens                                                SECURITY_POLICY_VIOLATION
    8  rate limits; that the id is new; the contract's schema           RATE_LIMIT_EXCEEDED, AUTH_FAILED,
       (decided by the hub, in one commit)                              CONTRACT_VIOLATION

Steps 1 to 4 need nothing but memory. What is refused names places, never what stood there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.core.ids import ADMIN, HUB, AgentId, Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.ports import Files, Intake, Store, Vault
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.a2acp import admission, codec, errors, intents
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.types import MESSAGE_BYTES, NOBODY, PROTOCOL_VERSION, Message, MessageType
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.server.a2acp import names, outbound
from dragoman.server.a2acp.builder import Voice
from dragoman.server.a2acp.contract_keys import ContractKeys
from dragoman.server.a2acp.contracts import moment
from dragoman.server.a2acp.correlation import Correlations
from dragoman.server.a2acp.interpreter import Interpreter, reads_tasks
from dragoman.server.a2acp.names import PROTOCOL
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.handler import HttpHandler
from dragoman.server.limits import Limits
from dragoman.server.outgoing import read_account
from dragoman.server.session import Invalid, LookUp, Request
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.role import Role

_encode = msgspec.json.Encoder().encode


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer answers. `asks`: whether its sender is told when it is refused."""

    id: str | None = None
    thread: str | None = None
    intent: str | None = None
    sender: Party | None = None
    asks: bool = True
    message: Message | None = None
    agent: Agent | None = None


class A2acpHandler(HttpHandler):
    """One for all of a2acp's endpoints."""

    protocol = PROTOCOL

    def __init__(
        self,
        hub: Intake,
        store: Store,
        auth: AuthService,
        vault: Vault,
        *,
        limits: Limits,
        files: Files | None = None,
    ) -> None:
        super().__init__(hub, store, limits=limits, files=files)
        self.auth = auth
        self.seals = ContractKeys(vault)
        self.broker = auth.broker
        self.threads = Correlations(self)
        self._interpreter = Interpreter(self)
        self.voice = Voice(
            broker=self.broker,
            party=self.party,
            called=self.threads.name,
            token=auth.word_for,
            shut=self.seals.shut,
            grant=self.seals.grant,
        )

    # -- who

    def party(self, id: AgentId) -> Party:
        agent = self.hub.agent(id)
        if agent is not None:
            return names.party_of(agent)
        if id in (ADMIN, HUB, "", self.broker.agent_id):
            return self.broker
        return Party(agent_id=id, domain="unknown", version="0.0.0")

    # -- what

    def decode(self, data: bytes, link: Agent | None, *, traceparent: str | None = None) -> LookUp | Invalid:
        """A message as what it means, or the fault to answer with. Never raises.

        `link`: who is connected, where a link has authenticated somebody.
        """
        tree: dict[str, Any] = {}
        about = About(agent=link)
        try:
            tree = codec.parse(data)
            tree = codec.understood(tree)
            message = codec.interpret(tree, trust_label=True)
            about = About(
                id=message.message_id,
                thread=message.thread,
                intent=message.intent,
                sender=message.source_agent,
                asks=message.message_type is not MessageType.ERROR,
                message=message,
                agent=link,
            )
            agent, granted = self.auth.verify(message, link)
            about = msgspec.structs.replace(about, agent=agent)
            self._check_spoken(message, agent)
        except A2acpError as error:
            asks = tree.get("message_type") != MessageType.ERROR.value
            broken = About(id=error.about, thread=error.thread, sender=codec.sender(tree), asks=asks, agent=link)
            return Invalid(errors.fault_of(error), error.about, broken)
        except Refused as refused:
            return Invalid(refused.fault, about.id, about)
        lane = None if message.message_type is MessageType.REQUEST else message.correlation_id
        return LookUp(
            partial(self._interpreter.command_of, agent, message, tree, granted, traceparent, len(data)),
            Request(message.message_id, about, lane=lane),
            after_commits=reads_tasks(message),
        )

    def _check_spoken(self, message: Message, agent: Agent) -> None:
        wrong = admission.misspoken(message, Role.AGENT, names.party_of(agent), self.broker)
        if wrong is not None:
            field, what, _ = wrong
            raise refuse(Kind.INVALID, what, field=field)
        late = admission.untimely(message.timestamp, moment(self.hub.now()))
        if late is not None:
            raise errors.refused(late)

    # -- what it came to

    def encode_answer(self, about: About, outcome: Any) -> bytes | None:
        """The broker's own answer to what was committed, where it needs nothing more."""
        if isinstance(outcome, Contract):
            self.seals.terms(outcome)
        message = about.message
        if message is None or message.message_type is not MessageType.REQUEST:
            return None
        match message.intent, outcome:
            case intents.TERMINATE, Contract():
                return self.reply(message, outbound.terminated(outcome, message.thread))
            case intents.ROTATE, Contract():
                to = AgentId(message.source_agent.agent_id)
                return self.reply(message, outbound.rotated(outcome, to, self.voice, message.thread))
        return None

    # -- the broker's words

    def reply(self, asked: Message, payload: Mapping[str, Any]) -> bytes:
        """The broker's response to a request of its own intents."""
        return self._say(MessageType.RESPONSE, asked.intent, payload, asked.source_agent)

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        """The error message about a refused one."""
        about = context if isinstance(context, About) else About(agent=agent)
        agent, to = about.agent, about.sender or NOBODY
        if agent is not None and to.agent_id != agent.id:
            to = names.party_of(agent)  # the agent that is connected, whatever the message says of its sender
        payload = errors.refusal_of(fault).payload(about.thread)
        # A caller that did not show who it is gets no token of the broker's for the agent that it names.
        audience = NOBODY.agent_id if agent is None else agent.id
        return self._say(MessageType.ERROR, about.intent, payload, to, audience)

    def status_of(self, fault: Fault) -> int:
        return errors.status_of(fault)

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        if isinstance(error, A2acpError):
            return errors.fault_of(error)
        return Fault(kind=Kind.TOO_LARGE, message=error.what, facts={"stage": "size", "limit": MESSAGE_BYTES})

    def json(self, data: bytes) -> dict[str, Any]:
        try:
            return codec.parse(data)
        except A2acpError as error:
            raise Refused(errors.fault_of(error)) from None

    def _say(
        self, kind: MessageType, intent: str | None, payload: Mapping[str, Any], to: Party, audience: str | None = None
    ) -> bytes:
        now = self.hub.now()
        message = {
            "protocol_version": PROTOCOL_VERSION,
            "message_id": names.message_id(self.hub.mint()),
            "timestamp": rfc3339(now),
            "source_agent": self.broker,
            "target_agent": to,
            "message_type": kind,
            **({} if intent is None else {"intent": intent}),
            "payload": payload,
            "security": {"auth_token": self.auth.word_for(audience or to.agent_id), "encryption": "none"},
        }
        return _encode(message)

    # -- outgoing messages

    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        await self.threads.recall(agent.id)
        wanted = outbound.wanted(outgoing)
        row = None if wanted is None else await self.hub.contract(wanted)
        if row is not None:
            self.seals.terms(row)
        whole = await self._whole(outgoing) if self.is_long(outgoing) else None
        return (self.encode_under(outgoing, agent, now, row, whole),)

    def encode_under(
        self, outgoing: Outgoing, agent: Agent, now: Instant, row: Contract | None, whole: str | None = None
    ) -> bytes:
        kind, id = outgoing.delivery.kind, names.message_id(outgoing.delivery.id)
        if kind is MessageKind.PROPOSAL:
            self.threads.propose(agent.id, outgoing.event.id, id)
        elif outgoing.task is not None and outgoing.task.owner == agent.id:
            self.threads.give(outgoing.task, id if kind is MessageKind.WORK else None)
        return outbound.wire_of(outgoing, agent.id, now, self.voice, row, whole=whole)

    def is_long(self, outgoing: Outgoing) -> bool:
        """Whether the output of a result must be put together first."""
        return outgoing.delivery.kind is MessageKind.RESULT and outbound.ends_in_pieces(outgoing.event)

    async def _whole(self, outgoing: Outgoing) -> str:
        return (await read_account(self.store, outgoing.delivery.task, outgoing.event.seq)).output
