"""What an agent's message means: its contract, its task, and its payload in clear.

These are the steps of `handler` that need more than the message itself: contract, capabilities, key. The result is a
command for the hub. `correlation` knows what each agent was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.core.agreements import terms as schemas
from dragoman.core.commands import Command, NoteRead, ReportProgress
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.contracts import Contract
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Files, Intake, Store, StoreFailed, TaskFilter
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.messages.tasks import Json
from dragoman.protocols.a2acp import codec, contracts, intents, sealing
from dragoman.protocols.a2acp.errors import A2acpError, fault_of, refused
from dragoman.protocols.a2acp.mapping import PROGRESS, QUESTION
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES, PROTOCOL, RESERVED, Message, MessageType
from dragoman.security.redaction import handling
from dragoman.server.a2acp.contract_keys import ContractKeys, check_public_key
from dragoman.server.a2acp.contracts import discovered, moment
from dragoman.server.a2acp.correlation import Correlations
from dragoman.server.a2acp.frames import Broker, thread_of
from dragoman.server.a2acp.inbound import LARGE, InboundMessage, check_room, command_of
from dragoman.server.a2acp.tokens import lacking
from dragoman.server.files import file_id_in, with_file
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.schema.library import SchemaError

PAGE = 200
MOST_PAGES = 5
SEALED = ("alg", "kid", "nonce", "ciphertext")
_PLAIN = guard.Limits(bytes=PAYLOAD_BYTES, depth=codec.LIMITS.depth)


class Judge:
    """One for all endpoints."""

    def __init__(
        self, hub: Intake, store: Store, files: Files | None, broker: Broker, keys: ContractKeys, sent: Correlations
    ) -> None:
        self._hub = hub
        self._store = store
        self._files = files
        self._broker = broker
        self._keys = keys
        self._sent = sent

    async def command_of(self, inbound: InboundMessage) -> Command | Json:
        """The command of a message; of one that only reads, the payload of the broker's response. Raises `Refused`."""
        message = inbound.message
        if message.message_type in (MessageType.RESPONSE, MessageType.ERROR):
            await self._sent.recall(inbound.agent.id)
            inbound = self._with_intent(inbound)
        match inbound.message.message_type, inbound.message.intent:
            case MessageType.REQUEST, intents.DISCOVER:
                return await self._discovered(inbound)
            case MessageType.REQUEST, intents.INITIATE:
                inbound = self._with_new_key(inbound)
            case MessageType.REQUEST, intents.ROTATE:
                inbound = await self._with_rotated_key(inbound)
            case MessageType.REQUEST, intents.TERMINATE:
                inbound = await self._with_ended_contract(inbound)
            case MessageType.REQUEST, _:
                inbound = await self._request(inbound)
            case MessageType.RESPONSE | MessageType.ERROR, intents.ACCEPT:
                inbound = await self._decision(inbound)
            case MessageType.RESPONSE | MessageType.ERROR, _:
                inbound = await self._answer(inbound)
            case MessageType.EVENT, intents.CANCEL:
                inbound = inbound._replace(task=await self._cancelled(inbound))
            case MessageType.EVENT, intent if intent in (PROGRESS, QUESTION):
                inbound = await self._answer(inbound)
                command: Command = command_of(inbound)
                # A ciphertext that the hub cannot open names no file.
                file = None if inbound.sealed else file_id_in(inbound.content)
                if file is None or not isinstance(command, ReportProgress):
                    return command
                return await with_file(command, self._files, file)
            case _:
                inbound = await self._event(inbound)
        return command_of(inbound)

    # -- requests to the broker

    async def _discovered(self, inbound: InboundMessage) -> Json:
        asked, me = msgspec.convert(inbound.message.payload, intents.Discover), inbound.agent
        seen = inbound.message.message_id
        await self._hub.execute(NoteRead(principal=me.id, protocol=PROTOCOL, what=intents.DISCOVER, seen=seen))
        agents = ((agent, self._hub.reachable(agent.id)) for agent in self._hub.agents())
        found = intents.payload(discovered(asked, me, agents, self._hub.policy.domain_policies))
        present = {name: value for name, value in found.items() if value is not None}
        return {**present, "correlation_id": inbound.message.thread}

    def _with_new_key(self, inbound: InboundMessage) -> InboundMessage:
        asked = msgspec.convert(inbound.message.payload, intents.Initiate)
        for field, schema in (("request_schema", asked.request_schema), ("response_schema", asked.response_schema)):
            if schema is not None:
                check_schema(schema, f"payload.{field}")
        return inbound._replace(secret=self._keys.secret(asked.public_key, end_to_end=asked.mode == "end-to-end"))

    async def _with_rotated_key(self, inbound: InboundMessage) -> InboundMessage:
        asked = msgspec.convert(inbound.message.payload, intents.Rotate)
        row = await self._store.contract_of(asked.collaboration_id)
        if row is None or inbound.agent.id not in row.parties:
            raise refuse(Kind.NOT_FOUND, "no such collaboration, or not yours", field="collaboration_id")
        of_source = inbound.agent.id == row.source.agent
        secret = self._keys.secret(asked.public_key, end_to_end=row.end_to_end, of_source=of_source)
        return inbound._replace(secret=secret)

    async def _with_ended_contract(self, inbound: InboundMessage) -> InboundMessage:
        """With the contract, where the message names it instead of the collaboration."""
        asked = msgspec.convert(inbound.message.payload, intents.Terminate)
        if asked.collaboration_id is not None or asked.contract_id is None:
            return inbound
        row = await self._hub.contract(asked.contract_id)
        if row is None or inbound.agent.id not in row.parties:
            raise refuse(Kind.NOT_FOUND, "no such contract, or not yours", field="contract_id")
        return inbound._replace(contract=row)

    # -- requests to agents

    async def _request(self, inbound: InboundMessage) -> InboundMessage:
        """A request under its contract, with its payload in clear."""
        message = inbound.message
        if message.target_agent.agent_id == self._broker.agent.agent_id:
            raise refuse(
                Kind.UNSUPPORTED_WORK,
                f"the broker does not serve {message.intent!r}",
                next=f"ask an agent, or one of {', '.join(intents.INTENTS)}",
                field="intent",
            )
        row = None if message.contract_id is None else await self._hub.contract(message.contract_id)
        if row is None:
            self._check_pii(message)
        refusal = contracts.judge(None if row is None else self._keys.terms(row).held, message, moment(inbound.now))
        if refusal is not None:
            raise refused(refusal)
        assert row is not None
        if not codec.compatible(message.target_agent.version, row.target.version):
            raise refuse(
                Kind.UNSUPPORTED_VERSION,
                f"agent {row.target.agent!r} is version {row.target.version}",
                next="they are not compatible",
                field="target_agent.version",
                supported_versions=[row.target.version],
            )
        if missing := sorted(set(row.offer.required_capabilities) - set(inbound.granted)):
            raise lacking(missing)
        inbound = self._opened(inbound, row, row.offer.input_schema, "input")
        if inbound.size > LARGE:
            target = self._hub.agent(row.target.agent)
            if target is not None and target.protocol == PROTOCOL:
                check_room(inbound, row, self._broker)
        return inbound

    def _check_pii(self, message: Message) -> None:
        """Personal data without a contract and in clear is refused for the worse of the two reasons."""
        target = self._hub.agent(AgentId(message.target_agent.agent_id))
        offer = None if target is None else target.offer(message.intent or "")
        if offer is not None and offer.pii and not is_sealed(message):
            what = f"{message.intent} carries personal data: shake hands for a key, and send it as aes256"
            raise refuse(Kind.FORBIDDEN, what, field="security.encryption", pii=True)

    def _opened(self, inbound: InboundMessage, row: Contract, schema: Any, side: str) -> InboundMessage:
        """With its content in clear, unless only the two agents can open it."""
        payload, key = inbound.payload, f"{row.id}/{side}".encode()
        if inbound.message.security.encryption != "aes256":
            return inbound._replace(contract=row, content=content_of(payload, schema, key))
        if row.end_to_end:
            return inbound._replace(contract=row, content={name: payload[name] for name in SEALED}, sealed=True)
        with handling(Refused, StoreFailed):
            opened = _object_in(self._keys.open(row, inbound.message, payload, inbound.now))
            sealed_by = f"{payload['kid']}/{payload['nonce']}"
            clear = {**opened, **{name: payload[name] for name in RESERVED if name in payload}}
            return inbound._replace(contract=row, content=content_of(clear, schema, key), sealed_by=sealed_by)

    # -- answers of agents

    async def _answer(self, inbound: InboundMessage) -> InboundMessage:
        """A response, error, progress or question, with the task that it is about."""
        message = inbound.message
        given = await self._sent.answered(inbound.agent.id, message)
        inbound = inbound._replace(task=given.task)
        row = None if given.contract is None else await self._hub.contract(given.contract)
        if row is None or inbound.agent.id not in row.parties:  # it has no contract, or another agent's
            offer = inbound.agent.offer(given.type)
            caller = self._broker.party(given.principal).agent_id
            if message.target_agent.agent_id != caller:
                raise refuse(
                    Kind.CONTRACT,
                    f"the answer is for {caller}, who asked",
                    next="send it there",
                    field="target_agent.agent_id",
                )
            check_label(message)
            schema = True if offer is None else offer.output_schema
            return inbound._replace(content=content_of(inbound.payload, schema, None))
        if message.contract_id not in (None, row.id):
            what = "the answer names another contract than the request"
            raise refuse(Kind.CONTRACT, what, field="contract_id", contract_id=message.contract_id)
        refusal = contracts.judge(self._keys.terms(row).lasting, message, moment(inbound.now))
        if refusal is not None:
            raise refused(refusal)
        if message.message_type is MessageType.ERROR:
            return inbound._replace(contract=row)
        return self._opened(inbound, row, row.offer.output_schema, "output")

    def _with_intent(self, inbound: InboundMessage) -> InboundMessage:
        """The document's answer to a proposal has `accepted` and no intent; an error has none either, and names the
        proposal."""
        message, me = inbound.message, inbound.agent.id
        if message.intent is not None or message.target_agent.agent_id != self._broker.agent.agent_id:
            return inbound
        if message.message_type is MessageType.RESPONSE:
            decides = type(inbound.payload.get("accepted")) is bool and self._sent.has_proposals(me)
        else:
            decides = message.correlation_id is not None and self._sent.is_proposal(me, message.correlation_id)
        if not decides:
            return inbound
        tree = {**inbound.tree, "intent": intents.ACCEPT}
        try:
            return inbound._replace(message=codec.interpret(tree), tree=tree)
        except A2acpError as error:
            raise Refused(fault_of(error)) from None

    async def _decision(self, inbound: InboundMessage) -> InboundMessage:
        """The answer to a proposal, with the handshake that it is about."""
        named = inbound.message.correlation_id
        if inbound.message.message_type is MessageType.RESPONSE:
            decision = msgspec.convert(inbound.message.payload, intents.Decision)
            named = named or decision.handshake_id
            if decision.public_key is not None:
                check_public_key(decision.public_key)
        return inbound._replace(handshake=await self._sent.proposal(inbound.agent.id, named))

    # -- events of the agents' own

    async def _event(self, inbound: InboundMessage) -> InboundMessage:
        """An event with its contract, and the request that it is about, if it is about one."""
        message, me = inbound.message, inbound.agent.id
        task = await self._concerned(inbound)
        named = message.contract_id or (None if task is None else task.agreement.contract)
        row = None if named is None else await self._hub.contract(named)
        if task is not None:
            is_owner = task.owner == me
            if not is_owner and task.owner is not None:
                await self._sent.recall(task.owner)
            inbound = inbound._replace(task=task.id, thread=thread_of(task) if is_owner else self._sent.name(task))
            caller = self._broker.party(task.origin.principal).agent_id
            if is_owner and message.target_agent.agent_id == caller:
                receiver = self._hub.agent(AgentId(caller))
                inbound = inbound._replace(reports=receiver is None or receiver.protocol != PROTOCOL)
                if message.contract_id is None and (row is None or me not in row.parties):  # the task has no contract
                    check_label(message)
                    return inbound._replace(content=content_of(inbound.payload, True, None))
        terms = None if row is None else self._keys.terms(row)
        begun = task is not None and row is not None and task.agreement.contract == row.id and not task.final
        held = None if terms is None else terms.lasting if begun else terms.held
        refusal = contracts.judge(held, message, moment(inbound.now))
        if refusal is not None:
            raise refused(refusal)
        assert row is not None
        inbound = self._opened(inbound, row, True, "event")
        return inbound._replace(thread=None) if inbound.sealed else inbound  # the ciphertext is bound to its own

    async def _concerned(self, inbound: InboundMessage) -> Task | None:
        """The request that an event is about: one that its sender works on, or waits for. None: the hub knows no such
        request, and only the two agents know what the correlation id means."""
        thread = inbound.message.correlation_id
        if thread is None:
            return None
        try:
            given = await self._sent.answered(inbound.agent.id, inbound.message)
        except Refused:
            given = None
        if given is not None and inbound.message.contract_id in (None, given.contract):
            return await self._store.task(given.task)
        found = await self._requested_by(inbound, thread, pages=1)
        return None if found is None or found.owner is None else found

    async def _cancelled(self, inbound: InboundMessage) -> TaskId:
        """The task that a caller names by its correlation id."""
        thread = inbound.message.correlation_id
        found = None if thread is None else await self._requested_by(inbound, thread, pages=MOST_PAGES)
        if found is None:
            what = "no request of yours to that agent, and on that contract, has that correlation id"
            raise refuse(Kind.NOT_FOUND, what, field="correlation_id")
        return found.id

    async def _requested_by(self, inbound: InboundMessage, thread: str, *, pages: int) -> Task | None:
        """The sender's request of that name: the newest that is open, else the newest. A name may serve a whole
        conversation, with several agents."""
        newest: Task | None = None
        after: str | None = None
        for _ in range(pages):
            page, after = await self._store.tasks(TaskFilter(principal=inbound.agent.id), after=after, limit=PAGE)
            for task in page:
                named = thread in (task.id, task.origin.called, task.origin.request_id)
                if named and await self._concerns(inbound.message, task):
                    if not task.final:
                        return task
                    newest = newest or task
            if after is None:
                break
        return newest

    async def _concerns(self, message: Message, task: Task) -> bool:
        """Whether a caller's message is to the agent that it asked (or to the broker), and under the contract of the
        request or its renewal."""
        asked_under = None if task.agreement.contract is None else await self._hub.contract(task.agreement.contract)
        receivers = {self._broker.agent.agent_id, task.owner, None if asked_under is None else asked_under.target.agent}
        if message.target_agent.agent_id not in receivers:
            return False
        if message.contract_id in (None, task.agreement.contract):
            return True
        sent_under = await self._hub.contract(message.contract_id)
        return (
            asked_under is not None and sent_under is not None and asked_under.collaboration == sent_under.collaboration
        )


def reads_tasks(message: Message) -> bool:
    """Whether its meaning depends on rows that earlier messages of its sender may change: an event is about a request
    of its sender, and the broker looks a collaboration up. The most frequent messages (requests, answers, progress) do
    not, and wait for no commit."""
    match message.message_type, message.intent:
        case MessageType.REQUEST, intents.DISCOVER | intents.ROTATE | intents.TERMINATE:
            return True
        case MessageType.EVENT, intent:
            return message.correlation_id is not None and intent not in (PROGRESS, QUESTION)
    return False


def is_sealed(message: Message) -> bool:
    """Whether a payload is labelled as encrypted, and has that form."""
    payload = message.payload or {}
    labelled = message.security.encryption == "aes256"
    return labelled and sealing.misshapen(payload) is None and not sealing.is_in_clear(payload)


def check_label(message: Message) -> None:
    """Refuses a payload in clear that is labelled as encrypted, where there is no contract."""
    if message.security.encryption == "aes256" and not is_sealed(message):
        raise refuse(
            Kind.FORBIDDEN,
            "the payload is labelled aes256 and not sealed",
            next="without a contract there is no key: send it as none",
            field="security.encryption",
        )


def check_schema(schema: Any, field: str) -> None:
    """Refuses a schema that the hub cannot check values against, and names its place."""
    try:
        schemas.LIBRARY.compiled(schema)
    except SchemaError as error:
        where = f"{field}{error.pointer}"
        raise refuse(Kind.INVALID, f"no schema that is taken here: {error.what}", field=where) from None


def content_of(payload: Mapping[str, Any], schema: Any, key: bytes | None) -> Json:
    """A payload without the fields of the protocol itself, unless the schema names them."""
    if schema is True:
        return {name: value for name, value in payload.items() if name not in RESERVED}
    return schemas.LIBRARY.compiled(schema, key=key).content(payload, RESERVED)


def _object_in(plain: bytes) -> Json:
    try:
        tree = guard.check(plain, _PLAIN)
    except RemoteProtocolError as error:
        raise refuse(Kind.INVALID, f"what was sealed: {error.what}", field="payload.ciphertext") from None
    if type(tree) is not dict:
        raise refuse(Kind.INVALID, "what was sealed is no JSON object", field="payload.ciphertext")
    return tree
