"""What an agent's message means: under which contract it is said, which task it is about, and what its payload holds.

Here are the steps that need more than the message itself (`handler` has the list): contract, capabilities, key.
Contracts are remembered by the hub, and by `threads` what each agent was asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.agreements import terms as schemas
from dragoman.core.commands import Command, NoteRead, ReportProgress
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.tasks import Task
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.protocols.a2acp import codec, contracts, errors, intents, sealing, versions
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.mapping import PROGRESS, QUESTION
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES, RESERVED, Message, MessageType
from dragoman.security.redaction import handling
from dragoman.server.a2acp import inbound, names
from dragoman.server.a2acp.contract_keys import checked
from dragoman.server.a2acp.contracts import discovered, moment
from dragoman.server.a2acp.names import PROTOCOL
from dragoman.server.a2acp.room import LARGE, check_room
from dragoman.server.a2acp.said import Said
from dragoman.server.a2acp.tokens import lacking
from dragoman.server.files import file_id_in, with_file
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.schema.library import SchemaError

if TYPE_CHECKING:
    from dragoman.server.a2acp.handler import A2acpHandler

PAGE = 200
MOST_PAGES = 5
SEALED = ("alg", "kid", "nonce", "ciphertext")
_PLAIN = guard.Limits(bytes=PAYLOAD_BYTES, depth=codec.LIMITS.depth)


class Interpreter:
    """One for all endpoints."""

    def __init__(self, handler: A2acpHandler) -> None:
        self._handler = handler
        self.hub = handler.hub
        self.store = handler.store
        self.seals = handler.seals
        self.threads = handler.threads

    async def command_of(
        self,
        agent: Agent,
        message: Message,
        tree: dict[str, Any],
        granted: tuple[str, ...],
        traceparent: str | None,
        size: int,
    ) -> Command | Sequence[bytes]:
        """The command that a message is, or, for what only reads, its answer; raises `Refused`."""
        if message.message_type in (MessageType.RESPONSE, MessageType.ERROR):
            await self.threads.recall(agent.id)
        message, tree = self._completed(message, tree)
        said = Said(agent, message, tree, self.hub.now(), granted=granted, traceparent=traceparent, size=size)
        match message.message_type, message.intent:
            case MessageType.REQUEST, intents.DISCOVER:
                return [self._handler.reply(message, await self._discover(said))]
            case MessageType.REQUEST, intents.INITIATE:
                asked = msgspec.convert(message.payload, intents.Initiate)
                self._check_schemas(asked)
                secret = self.seals.secret(asked.public_key, end_to_end=asked.mode == "end-to-end")
                return inbound.command_of(said._replace(secret=secret))
            case MessageType.REQUEST, intents.ROTATE:
                return inbound.command_of(said._replace(secret=await self._rotated(said)))
            case MessageType.RESPONSE | MessageType.ERROR, intents.ACCEPT:
                return inbound.command_of(await self._decided(said))
            case MessageType.REQUEST, intents.TERMINATE:
                return inbound.command_of(said._replace(contract=await self._ended(said)))
            case MessageType.REQUEST, _:
                return inbound.command_of(await self._requested(said))
            case MessageType.EVENT, intents.CANCEL:
                return inbound.command_of(said._replace(task=await self._asked(said)))
            case MessageType.RESPONSE | MessageType.ERROR, _:
                return inbound.command_of(await self._answered(said))
            case MessageType.EVENT, intent if intent in (PROGRESS, QUESTION):
                return await self._with_file(await self._answered(said))
        return inbound.command_of(await self._told(said))

    # -- what only reads, and what needs a key

    async def _discover(self, said: Said) -> dict[str, Any]:
        asked = msgspec.convert(said.message.payload, intents.Discover)
        note = NoteRead(principal=said.agent.id, protocol=PROTOCOL, what=intents.DISCOVER, seen=said.message.message_id)
        await self.hub.execute(note)
        agents = ((agent, self.hub.reachable(agent.id)) for agent in self.hub.agents())
        found = discovered(asked, said.agent, agents, self.hub.policy.borders)
        told = {name: value for name, value in intents.payload(found).items() if value is not None}
        return {**told, "correlation_id": said.message.thread}

    def _check_schemas(self, asked: intents.Initiate) -> None:
        for field in ("request_schema", "response_schema"):
            schema = getattr(asked, field)
            if schema is not None:
                compiled(schema, f"payload.{field}")

    async def _rotated(self, said: Said) -> Any:
        asked = msgspec.convert(said.message.payload, intents.Rotate)
        row = await self.store.contract_of(asked.collaboration_id)
        if row is None or said.agent.id not in row.parties:
            raise refuse(Kind.NOT_FOUND, "no such collaboration, or not yours", field="collaboration_id")
        of_source = said.agent.id == row.source.agent
        return self.seals.secret(asked.public_key, end_to_end=row.end_to_end, of_source=of_source)

    async def _ended(self, said: Said) -> Contract | None:
        """The contract that is to end, where it is named instead of its collaboration."""
        asked = msgspec.convert(said.message.payload, intents.Terminate)
        if asked.collaboration_id is not None or asked.contract_id is None:
            return None
        row = await self.hub.contract(asked.contract_id)
        if row is None or said.agent.id not in row.parties:
            raise refuse(Kind.NOT_FOUND, "no such contract, or not yours", field="contract_id")
        return row

    # -- requests

    async def _requested(self, said: Said) -> Said:
        """A request under its contract, open."""
        message = said.message
        if message.target_agent.agent_id == self._handler.broker.agent_id:
            what = f"the broker does not serve {message.intent!r}; ask an agent, or one of {', '.join(intents.INTENTS)}"
            raise refuse(Kind.UNSUPPORTED_WORK, what, field="intent")
        row = None if message.contract_id is None else await self.hub.contract(message.contract_id)
        if row is None:
            self._check_pii(message)
        terms = None if row is None else self.seals.terms(row)
        refusal = contracts.judge(None if terms is None else terms.held, message, moment(said.now))
        if refusal is not None:
            raise errors.refused(refusal)
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
        said = self._opened(said, row, row.offer.input_schema, "input")
        target = self.hub.agent(row.target.agent)
        if said.size > LARGE and target is not None and target.protocol == PROTOCOL:
            check_room(said, row, self._handler.voice)
        return said

    def _check_pii(self, message: Message) -> None:
        """Personal data without a contract and in clear is refused for the worse of the two reasons."""
        target = self.hub.agent(AgentId(message.target_agent.agent_id))
        offer = None if target is None else target.offer(message.intent or "")
        if offer is not None and offer.pii and not is_sealed(message):
            what = f"{message.intent} carries personal data: shake hands for a key, and send it as aes256"
            raise refuse(Kind.FORBIDDEN, what, field="security.encryption", pii=True)

    def _opened(self, said: Said, row: Contract, schema: Any, side: str) -> Said:
        """With its content in clear, as far as it is for the hub to read."""
        payload = said.payload
        said = said._replace(contract=row)
        if said.message.security.encryption == "aes256":
            if row.end_to_end:
                return said._replace(content={name: payload[name] for name in SEALED}, sealed=True)
            with handling(Refused, StoreFailed):
                inside = self._read(self.seals.open(row, said.message, payload, said.now))
                sealed_by = f"{payload['kid']}/{payload['nonce']}"
                payload = {**inside, **{name: payload[name] for name in RESERVED if name in payload}}
                content = without(schema, payload, f"{row.id}/{side}".encode())
                return said._replace(sealed_by=sealed_by, content=content)
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

    async def _answered(self, said: Said) -> Said:
        """A response, error, progress or question, with the task that it is about."""
        message = said.message
        given = await self.threads.answered(said.agent.id, message)
        said = said._replace(task=given.task)
        row = None if given.contract is None else await self.hub.contract(given.contract)
        if row is None or said.agent.id not in row.parties:  # it came without one, or out of other hands
            owner = said.agent.offer(given.type)
            asker = self._handler.party(given.principal).agent_id
            if message.target_agent.agent_id != asker:
                what = f"the answer is for {asker}, who asked; send it there"
                raise refuse(Kind.CONTRACT, what, field="target_agent.agent_id")
            check_label(message)
            schema = True if owner is None else owner.output_schema
            return said._replace(content=without(schema, said.payload, None))
        if message.contract_id not in (None, row.id):
            what = "the answer names another contract than the request"
            raise refuse(Kind.CONTRACT, what, field="contract_id", contract_id=message.contract_id)
        refusal = contracts.judge(self.seals.terms(row).lasting, message, moment(said.now))
        if refusal is not None:
            raise errors.refused(refusal)
        if message.message_type is MessageType.ERROR:
            return said._replace(contract=row)
        return self._opened(said, row, row.offer.output_schema, "output")

    async def _with_file(self, said: Said) -> Command:
        """Progress, with the file that it names. What is sealed end to end names none that anybody here can see."""
        command: Command = inbound.command_of(said)
        file = None if said.sealed else file_id_in(said.content)
        if file is None or not isinstance(command, ReportProgress):
            return command
        return await with_file(command, self._handler.files, file)

    # -- events of the agents' own

    async def _told(self, said: Said) -> Said:
        """An event with the contract that it is said under, and the request that it is about, if it is about one."""
        message, me = said.message, said.agent.id
        task = await self._concerned(said)
        named = message.contract_id or (None if task is None else task.contract)
        row = None if named is None else await self.hub.contract(named)
        if task is not None:
            mine = task.owner == me
            if not mine and task.owner is not None:
                await self.threads.recall(task.owner)
            said = said._replace(task=task.id, thread=names.thread_of(task) if mine else self.threads.name(task))
            asker = self._handler.party(task.origin.principal).agent_id
            if mine and message.target_agent.agent_id == asker:
                receiver = self.hub.agent(AgentId(asker))
                said = said._replace(reports=receiver is None or receiver.protocol != PROTOCOL)
                if message.contract_id is None and (row is None or me not in row.parties):  # it came without one
                    check_label(message)
                    return said._replace(content=without(True, said.payload, None))
        terms = None if row is None else self.seals.terms(row)
        begun = task is not None and row is not None and task.contract == row.id and not task.final
        held = None if terms is None else terms.lasting if begun else terms.held
        refusal = contracts.judge(held, message, moment(said.now))
        if refusal is not None:
            raise errors.refused(refusal)
        assert row is not None
        said = self._opened(said, row, True, "event")
        return said._replace(thread=None) if said.sealed else said  # a ciphertext is bound to what stood there

    async def _concerned(self, said: Said) -> Task | None:
        """The request that an event is about: one that its sender works on, or waits for. None: the hub knows of none,
        and what the two mean by it is their own affair."""
        thread = said.message.correlation_id
        if thread is None:
            return None
        try:
            given = await self.threads.answered(said.agent.id, said.message)
        except Refused:
            given = None
        if given is not None and said.message.contract_id in (None, given.contract):
            return await self.store.task(given.task)
        found = await self._own(said, thread, pages=1)
        return None if found is None or found.owner is None else found

    # -- handshakes

    def _completed(self, message: Message, tree: dict[str, Any]) -> tuple[Message, dict[str, Any]]:
        """The document's answer to a proposal says `accepted` and no intent; its error says no intent either, and which
        proposal it is about."""
        me, named = AgentId(message.source_agent.agent_id), message.correlation_id
        match message.message_type:
            case MessageType.RESPONSE:
                decides = type((message.payload or {}).get("accepted")) is bool and self.threads.has_proposals(me)
            case MessageType.ERROR:
                decides = named is not None and self.threads.is_proposal(me, named)
            case _:
                decides = False
        if not decides or message.intent is not None or message.target_agent.agent_id != self._handler.broker.agent_id:
            return message, tree
        tree = {**tree, "intent": intents.ACCEPT}
        try:
            return codec.interpret(tree), tree
        except A2acpError as error:
            raise Refused(errors.fault_of(error)) from None

    async def _decided(self, said: Said) -> Said:
        """The answer to a proposal, with the handshake that it is about."""
        named = said.message.correlation_id
        if said.message.message_type is MessageType.RESPONSE:
            decision = msgspec.convert(said.message.payload, intents.Decision)
            named = named or decision.handshake_id
            if decision.public_key is not None:
                checked(decision.public_key)
        return said._replace(handshake=await self.threads.proposal(said.agent.id, named))

    # -- cancelling

    async def _asked(self, said: Said) -> TaskId:
        """The task that a caller means by its correlation id."""
        thread = said.message.correlation_id
        found = None if thread is None else await self._own(said, thread, pages=MOST_PAGES)
        if found is None:
            what = "no request of yours to that agent, and on that contract, has that correlation id"
            raise refuse(Kind.NOT_FOUND, what, field="correlation_id")
        return found.id

    async def _own(self, said: Said, thread: str, *, pages: int) -> Task | None:
        """A caller's own request of that name: the newest that is open, else the newest. A name may serve a whole
        conversation, with several agents."""
        newest: Task | None = None
        after: str | None = None
        for _ in range(pages):
            page, after = await self.store.tasks(TaskFilter(principal=said.agent.id), after=after, limit=PAGE)
            for task in page:
                named = thread in (task.id, task.origin.called, task.origin.request_id)
                if named and await self._concerns(said.message, task):
                    if not task.final:
                        return task
                    newest = newest or task
            if after is None:
                break
        return newest

    async def _concerns(self, message: Message, task: Task) -> bool:
        """Whether what a caller says is to whom it asked (or to the broker, who passes it on), and on those terms or on
        what they were renewed as."""
        asked_on = None if task.contract is None else await self.hub.contract(task.contract)
        receivers = {self._handler.broker.agent_id, task.owner, None if asked_on is None else asked_on.target.agent}
        if message.target_agent.agent_id not in receivers:
            return False
        if message.contract_id in (None, task.contract):
            return True
        said_on = await self.hub.contract(message.contract_id)
        return asked_on is not None and said_on is not None and asked_on.collaboration == said_on.collaboration


def reads_tasks(message: Message) -> bool:
    """Whether its meaning depends on rows that the sender's earlier messages may change: an event is about a request of
    its sender's, and the broker looks a collaboration up. What agents say most (requests, answers, progress) does not,
    and waits for nothing."""
    match message.message_type, message.intent:
        case MessageType.REQUEST, intents.DISCOVER | intents.ROTATE | intents.TERMINATE:
            return True
        case MessageType.EVENT, intent:
            return message.correlation_id is not None and intent not in (PROGRESS, QUESTION)
    return False


def is_sealed(message: Message) -> bool:
    """Whether a payload is labelled as encrypted, and has the form of one."""
    payload = message.payload or {}
    labelled = message.security.encryption == "aes256"
    return labelled and sealing.misshapen(payload) is None and not sealing.is_in_clear(payload)


def check_label(message: Message) -> None:
    """Of a message without a contract: a payload in clear must not be labelled as encrypted."""
    if message.security.encryption == "aes256" and not is_sealed(message):
        what = "the payload is labelled aes256 and not sealed; without a contract there is no key: send it as none"
        raise refuse(Kind.FORBIDDEN, what, field="security.encryption")


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
