"""The front desk of a2acp's doors: who says it, what does it mean, and how to say no.

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

from dragoman.bindings import a2acp
from dragoman.bindings.a2acp.inbound import PROGRESS
from dragoman.bindings.a2acp.names import PROTOCOL
from dragoman.core.agents.model import Agent
from dragoman.core.commands import Command, NoteRead
from dragoman.core.contracts import terms as schemas
from dragoman.core.contracts.model import Contract
from dragoman.core.delivery.model import Cargo, Parcel
from dragoman.core.errors import Fault, Kind, Refused, refuse
from dragoman.core.ids import ADMIN, HUB, AgentId, Instant, TaskId, rfc3339
from dragoman.core.ports import Intake, Store, TaskFilter, Vault
from dragoman.core.queries.transcript import Transcript
from dragoman.core.tasks.model import Question, Task
from dragoman.protocols.a2acp import codec, contracts, intents, replay, versions
from dragoman.protocols.a2acp.connection import NOBODY, misspoken
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES, PROTOCOL_VERSION, RESERVED, Message, MessageType
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.transports import identity
from dragoman.transports.a2acp.seals import Seals, checked
from dragoman.transports.a2acp.tokens import AuthService, lacking
from dragoman.transports.asgi import Scope
from dragoman.transports.driver import Heard
from dragoman.transports.limits import Limits
from dragoman.transports.refusals import Refusals
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.role import Role
from dragoman.wire.schema.library import SchemaError

PAGE = 200
MOST_PAGES = 5
MOST_GIVEN = 50_000
_PLAIN = guard.Limits(bytes=PAYLOAD_BYTES, depth=codec.LIMITS.depth)
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


class Given(msgspec.Struct, frozen=True):
    """Whose work an agent was given, and on which terms."""

    principal: AgentId
    contract: str | None
    type: str


class A2acpDesk:
    """One for all of a2acp's doors."""

    def __init__(
        self,
        hub: Intake,
        store: Store,
        auth: AuthService,
        vault: Vault,
        *,
        limits: Limits,
        refusals: Refusals | None = None,
    ) -> None:
        self.hub = hub
        self.store = store
        self.auth = auth
        self.limits = limits
        self.refusals = refusals or Refusals(hub)
        self.seals = Seals(vault)
        self.broker = auth.broker
        self._given: dict[TaskId, Given] = {}
        self.voice = a2acp.Voice(
            broker=self.broker,
            party=self._party,
            token=auth.word_for,
            shut=self.seals.shut,
            grant=self.seals.grant,
        )

    # -- who

    def agent(self, scope: Scope) -> Agent:
        """The a2acp agent whose secret this is; raises `Refused`."""
        return identity.speaker(self.hub, scope, PROTOCOL)

    def _party(self, id: AgentId) -> Party:
        agent = self.hub.agent(id)
        if agent is not None:
            return a2acp.party_of(agent)
        if id in (ADMIN, HUB, "", self.broker.agent_id):
            return self.broker
        return Party(agent_id=id, domain="unknown", version="0.0.0")

    # -- what

    def understand(
        self, data: bytes, link: Agent | None, *, follows: bool = False, traceparent: str | None = None
    ) -> Heard:
        """A message as what it means, or the fault to answer with. Never raises.

        `link`: who is connected, where a link has authenticated somebody. `follows`: the caller waits for the answer.
        """
        tree: dict[str, Any] = {}
        about = About(agent=link)
        try:
            tree = codec.parse(data)
            tree = codec.understood(tree)
            message = codec.interpret(tree)
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
            return Heard(fault=a2acp.fault_of(error), message_id=error.about, about=broken)
        except Refused as refused:
            return Heard(fault=refused.fault, message_id=about.id, about=about)
        look = partial(self._meaning, agent, message, tree, granted, follows, traceparent)
        return Heard(look=look, message_id=message.message_id, about=about)

    def _check_spoken(self, message: Message, agent: Agent) -> None:
        wrong = misspoken(message, Role.AGENT, a2acp.party_of(agent), self.broker)
        if wrong is not None:
            field, what, _ = wrong
            raise refuse(Kind.INVALID, what, field=field)
        late = replay.untimely(message.timestamp, a2acp.moment(self.hub.now()))
        if late is not None:
            raise a2acp.refused(late)

    async def _meaning(
        self,
        agent: Agent,
        message: Message,
        tree: dict[str, Any],
        granted: tuple[str, ...],
        follows: bool,
        traceparent: str | None,
    ) -> Command | Sequence[bytes]:
        """The command that a message is, or, for what only reads, its answer; raises `Refused`."""
        said = a2acp.Said(
            agent, message, tree, self.hub.now(), granted=granted, follows=follows, traceparent=traceparent
        )
        match message.message_type, message.intent:
            case MessageType.REQUEST, intents.DISCOVER:
                return [await self._discover(said)]
            case MessageType.REQUEST, intents.INITIATE:
                asked = msgspec.convert(message.payload, intents.Initiate)
                self._check_schemas(asked)
                secret = self.seals.secret(asked.public_key, end_to_end=asked.mode == "end-to-end")
                return a2acp.command_of(said._replace(secret=secret))
            case MessageType.REQUEST, intents.ROTATE:
                return a2acp.command_of(said._replace(secret=await self._rotated(said)))
            case MessageType.RESPONSE, intents.ACCEPT:
                decision = msgspec.convert(message.payload, intents.Decision)
                if decision.public_key is not None:
                    checked(decision.public_key)
                return a2acp.command_of(said)
            case (MessageType.REQUEST, intents.TERMINATE) | (MessageType.ERROR, intents.ACCEPT):
                return a2acp.command_of(said)
            case MessageType.REQUEST, _:
                return a2acp.command_of(await self._requested(said))
            case MessageType.EVENT, intents.CANCEL:
                return a2acp.command_of(said._replace(task=await self._asked(said)))
            case (MessageType.EVENT, None) | (MessageType.RESPONSE | MessageType.ERROR, _):
                return a2acp.command_of(await self._answered(said))
            case MessageType.EVENT, intent if intent == PROGRESS:
                return a2acp.command_of(await self._answered(said))
        return a2acp.command_of(said)  # an event that nobody knows: refused there

    # -- what only reads, and what needs a key

    async def _discover(self, said: a2acp.Said) -> bytes:
        asked = msgspec.convert(said.message.payload, intents.Discover)
        note = NoteRead(principal=said.agent.id, protocol=PROTOCOL, what=intents.DISCOVER, seen=said.message.message_id)
        await self.hub.ask(note)
        found = a2acp.discovered(asked, ((agent, self.hub.reachable(agent.id)) for agent in self.hub.agents()))
        told = {name: value for name, value in intents.payload(found).items() if value is not None}
        return self.reply(said.message, {**told, "correlation_id": said.message.thread})

    def _check_schemas(self, asked: intents.Initiate) -> None:
        for field in ("request_schema", "response_schema"):
            schema = getattr(asked, field)
            if schema is not None:
                compiled(schema, f"payload.{field}")

    async def _rotated(self, said: a2acp.Said) -> Any:
        asked = msgspec.convert(said.message.payload, intents.Rotate)
        row = await self.store.contract_of(asked.collaboration_id)
        if row is None or said.agent.id not in row.parties:
            raise refuse(Kind.NOT_FOUND, "no such collaboration, or not yours", field="collaboration_id")
        of_source = said.agent.id == row.source.agent
        return self.seals.secret(asked.public_key, end_to_end=row.end_to_end, of_source=of_source)

    # -- requests

    async def _requested(self, said: a2acp.Said) -> a2acp.Said:
        """A request under its contract, open."""
        message = said.message
        if message.target_agent.agent_id == self.broker.agent_id:
            what = f"the broker does not serve {message.intent!r}; ask an agent, or one of {', '.join(intents.INTENTS)}"
            raise refuse(Kind.UNSUPPORTED_WORK, what, field="intent")
        row = None if message.contract_id is None else await self.hub.contract(message.contract_id)
        if row is None:
            self._check_pii(message)
        terms = None if row is None else self.seals.terms(row)
        refusal = contracts.judge(None if terms is None else terms.held, message, a2acp.moment(said.now))
        if refusal is not None:
            raise a2acp.refused(refusal)
        assert row is not None
        assert terms is not None
        if not versions.compatible(message.target_agent.version, row.target.version):
            what = f"{row.target.agent} is version {row.target.version}; they are not compatible"
            raise refuse(
                Kind.UNSUPPORTED_VERSION, what, field="target_agent.version", supported_versions=[row.target.version]
            )
        missing = sorted(set(row.offer.required_capabilities) - set(said.granted))
        if missing:
            raise lacking(missing)
        if row.offer.pii:
            note = NoteRead(principal=said.agent.id, protocol=PROTOCOL, what="pii.request", about=row.id)
            self.hub.hand_in(note, _nothing)
        return self._opened(said, row, row.offer.input_schema, "input")

    def _check_pii(self, message: Message) -> None:
        """Personal data without a contract and in clear is refused for the worse of the two reasons."""
        target = self.hub.agent(AgentId(message.target_agent.agent_id))
        offer = None if target is None else target.offer(message.intent or "")
        if offer is not None and offer.pii and message.security.encryption == "none":
            what = f"{message.intent} carries personal data: shake hands for a key, and send it as aes256"
            raise refuse(Kind.FORBIDDEN, what, field="security.encryption", pii=True)

    def _opened(self, said: a2acp.Said, row: Contract, schema: Any, side: str) -> a2acp.Said:
        """With its content in clear, as far as it is for the hub to read."""
        payload = said.payload
        said = said._replace(contract=row)
        if said.message.security.encryption == "aes256":
            if row.end_to_end:
                return said._replace(content={name: payload[name] for name in SEALED}, sealed=True)
            inside = self._read(self.seals.open(row, said.message, payload, said.now))
            payload = {**inside, **{name: payload[name] for name in RESERVED if name in payload}}
        return said._replace(content=without(schema, payload, f"{row.id}/{side}".encode()))

    def _read(self, plain: bytes) -> dict[str, Any]:
        try:
            tree = guard.check(plain, _PLAIN)
        except RemoteProtocolError as error:
            raise refuse(Kind.INVALID, f"what was sealed: {error.what}", field="payload.ciphertext") from None
        if type(tree) is not dict:
            raise refuse(Kind.INVALID, "what was sealed is no JSON object", field="payload.ciphertext")
        return tree

    # -- answers

    async def _answered(self, said: a2acp.Said) -> a2acp.Said:
        """A response, error or progress, with the task that it is about."""
        message = said.message
        task, given = await self._worked_on(said)
        said = said._replace(task=task)
        row = None if given.contract is None else await self.hub.contract(given.contract)
        if row is None or said.agent.id not in row.parties:  # it came without one, or out of other hands
            owner = said.agent.offer(given.type)
            asker = self._party(given.principal).agent_id
            if message.target_agent.agent_id != asker:
                what = f"the answer is for {asker}, who asked; send it there"
                raise refuse(Kind.CONTRACT, what, field="target_agent.agent_id")
            schema = True if owner is None else owner.output_schema
            return said._replace(content=without(schema, said.payload, None))
        if message.contract_id not in (None, row.id):
            what = "the answer names another contract than the request"
            raise refuse(Kind.CONTRACT, what, field="contract_id", contract_id=message.contract_id)
        refusal = contracts.judge(self.seals.terms(row).lasting, message, a2acp.moment(said.now))
        if refusal is not None:
            raise a2acp.refused(refusal)
        if message.message_type is MessageType.ERROR:
            return said._replace(contract=row)
        return self._opened(said, row, row.offer.output_schema, "output")

    async def _worked_on(self, said: a2acp.Said) -> tuple[TaskId, Given]:
        """The task that an agent answers: by its id, or, where the hub cannot read along, by its caller's words."""
        thread = said.message.correlation_id
        if thread is None:
            raise refuse(Kind.INVALID, "missing; it names the request", field="payload.correlation_id")
        id = TaskId(thread)
        known = self._given.get(id)
        if known is not None:
            return id, known
        task = await self.store.task(id)
        if task is None or task.owner != said.agent.id:
            task = None
            for held in self.hub.load_of(said.agent.id):
                one = await self.store.task(held)
                if one is not None and a2acp.thread_of(one) == thread:
                    task = one
                    break
        if task is None:
            raise refuse(Kind.NOT_FOUND, "no request of that correlation id, or not yours", field="correlation_id")
        return task.id, self._remember(task)

    def _remember(self, task: Task) -> Given:
        if len(self._given) >= MOST_GIVEN:
            del self._given[next(iter(self._given))]
        given = self._given[task.id] = Given(task.origin.principal, task.contract, task.type)
        return given

    async def _asked(self, said: a2acp.Said) -> TaskId:
        """The task that a caller means by its correlation id."""
        thread = said.message.correlation_id
        after: str | None = None
        for _ in range(MOST_PAGES if thread is not None else 0):
            page, after = await self.store.tasks(TaskFilter(principal=said.agent.id), after=after, limit=PAGE)
            for task in page:
                if thread in (task.id, task.origin.called, task.origin.request_id):
                    return task.id
            if after is None:
                break
        raise refuse(Kind.NOT_FOUND, "no request of yours has that correlation id", field="correlation_id")

    # -- what it came to

    def told(self, about: About, outcome: Any) -> bytes | None:
        """The broker's own answer to what was committed, where it needs nothing more."""
        if isinstance(outcome, Contract):
            self.seals.terms(outcome)
        message = about.message
        if message is None or message.message_type is not MessageType.REQUEST:
            return None
        match message.intent, outcome:
            case intents.TERMINATE, Contract():
                return self.reply(message, a2acp.terminated(outcome, message.thread))
            case intents.ROTATE, Contract():
                to = AgentId(message.source_agent.agent_id)
                return self.reply(message, a2acp.rotated(outcome, to, self.voice, message.thread))
        return None

    async def shaken(self, message: Message, question: Question) -> bytes:
        """How a handshake ended."""
        answer: Mapping[str, Any] = question.answer
        row = await self.hub.contract(answer["contract_id"]) if "contract_id" in answer else None
        if row is None:
            fault = msgspec.convert(answer["fault"], Fault)
            raise Refused(fault)
        to = AgentId(message.source_agent.agent_id)
        return self.reply(message, a2acp.established(row, to, self.voice, message.thread))

    # -- the broker's words

    def reply(self, asked: Message, payload: Mapping[str, Any]) -> bytes:
        """The broker's response to a request of its own intents."""
        return self._say(MessageType.RESPONSE, asked.intent, payload, asked.source_agent)

    def complaint(self, fault: Fault, about: About | None) -> bytes:
        """The error message about a refused one."""
        about = about or About()
        to = about.sender or (NOBODY if about.agent is None else a2acp.party_of(about.agent))
        payload = a2acp.refusal_of(fault).payload(about.thread)
        # Whoever did not show who they are gets no word of ours for the agent they name.
        audience = NOBODY.agent_id if about.agent is None else to.agent_id
        return self._say(MessageType.ERROR, about.intent, payload, to, audience)

    def _say(
        self, kind: MessageType, intent: str | None, payload: Mapping[str, Any], to: Party, audience: str | None = None
    ) -> bytes:
        now = self.hub.now()
        message = {
            "protocol_version": PROTOCOL_VERSION,
            "message_id": a2acp.message_id(self.hub.mint()),
            "timestamp": rfc3339(now),
            "source_agent": self.broker,
            "target_agent": to,
            "message_type": kind,
            **({} if intent is None else {"intent": intent}),
            "payload": payload,
            "security": {"auth_token": self.auth.word_for(audience or to.agent_id), "encryption": "none"},
        }
        return _encode(message)

    # -- parcels

    async def carry(self, parcel: Parcel, agent: Agent, now: Instant) -> bytes:
        """A parcel as its message."""
        wanted = a2acp.wanted(parcel)
        row = None if wanted is None else await self.hub.contract(wanted)
        if row is not None:
            self.seals.terms(row)
        whole = await self._whole(parcel) if self.is_long(parcel) else None
        return self.put(parcel, agent, now, row, whole)

    def put(self, parcel: Parcel, agent: Agent, now: Instant, row: Contract | None, whole: str | None = None) -> bytes:
        if parcel.task is not None and parcel.task.owner == agent.id:
            self._remember(parcel.task)
        return a2acp.wire_of(parcel, agent.id, now, self.voice, row, whole=whole)

    def is_long(self, parcel: Parcel) -> bool:
        """Whether the output of a result must be put together first."""
        return parcel.delivery.cargo is Cargo.RESULT and a2acp.ends_in_pieces(parcel.event)

    async def _whole(self, parcel: Parcel) -> str:
        transcript = Transcript()  # never cut: what is too long for a message is not told in part
        after, last = 0, parcel.event.seq
        while after < last:
            page = await self.store.events(parcel.delivery.task, after=after, limit=PAGE)
            for event in page:
                transcript.feed(event)
            if not page:
                break
            after = page[-1].seq
        return transcript.account.output


SEALED = ("alg", "kid", "nonce", "ciphertext")


def compiled(schema: Any, field: str) -> None:
    """Look a stranger's schema through; raises `Refused`, by its place."""
    try:
        schemas.LIBRARY.compiled(schema)
    except SchemaError as error:
        where = f"{field}{error.pointer}"
        raise refuse(Kind.INVALID, f"no schema that is taken here: {error.what}", field=where) from None


def without(schema: Any, payload: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    """A payload without what the protocol itself puts there, unless the schema speaks of that."""
    if schema is True:
        return {name: value for name, value in payload.items() if name not in RESERVED}
    return schemas.LIBRARY.compiled(schema, key=key).content(payload, RESERVED)


def _nothing(outcome: Any, refusal: Refused | None) -> None:
    """Nobody waits for it."""
