"""An agent's words in a2acp, over a channel.

    the engine says     a2acp says                                the hub says                         the engine hears
    ------------------  ----------------------------------------  -----------------------------------  ----------------
    Report              event progress (ours: the document has    request                              Work
                        none); sealed where the contract is       request accept_handshake             Proposal
    Query               event question (ours)                     event cancel                         Cancel
    Outcome             response, or error by one of the codes    event answer (ours)                  Reply
    Decline             error                                     an error as answer to a POST         Refused
    Verdict             response accept_handshake                 a success as answer to a POST        Accepted
    (on opening)        POST /a2acp/agents                        events about contracts               -, the key ring
                                                                  responses, other errors              -, the caller

An answer that is said again is a new message with a new time, for the broker takes an id once and only for minutes; by
its correlation id it is the same answer. A report or question is said again under its own id: told twice it would count
twice.

Errors travel in clear. Under a contract about personal data only what a handler says on purpose (`task.reject`, a
`CallFailed`) is told; what else it raised stays in the agent's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.protocols.a2acp import codec, intents, mapping
from dragoman.protocols.a2acp.contracts import Capability
from dragoman.protocols.a2acp.errors import TABLE, Code, Refusal
from dragoman.protocols.a2acp.types import Agent, Message, MessageType
from dragoman.sdk import trace
from dragoman.sdk.a2acp import payloads
from dragoman.sdk.a2acp.channel import Answered, Channel, Unsaid, Write
from dragoman.sdk.a2acp.identity import ANSWER, BROKER, PROGRESS, QUESTION, Identity
from dragoman.sdk.a2acp.keyring import Pair, Unopened
from dragoman.sdk.a2acp.requests import PERSONAL, SEALED, THREAD, declined, failed, proposal_of, task_in, work_of
from dragoman.sdk.errors import NotSupported
from dragoman.sdk.links import Introduction, ProtocolCapabilities
from dragoman.sdk.messages import (
    PRIVATE,
    Accepted,
    Answer,
    Cancel,
    Decline,
    Inbound,
    Outbound,
    Outcome,
    Pause,
    ProposalAnswer,
    Question,
    Refused,
    Report,
    Resume,
    failure,
    part,
)
from dragoman.sdk.network.pipe import Frame
from dragoman.sdk.runtime import Runtime

log = logging.getLogger("dragoman.sdk")

PROTOCOL_CAPABILITIES = ProtocolCapabilities(name="a2acp", words_are_receipts=False)
PIECE = 256 * 1024
"""Characters of output in one event: even sealed, and all of them written as escapes, it fits."""
MOST_TRIES = 3
STEERED: dict[str | None, type[Pause | Resume]] = {"pause": Pause, "resume": Resume}
"""Events of ours: a person holds the task, and lets it go on."""


class Memory(msgspec.Struct):
    """What outlives a link: proposals that wait for our answer, and key requests under way."""

    proposals: dict[str, Message] = {}
    offers: dict[str, Pair] = {}


class A2acpLink:
    """`links.Link` in a2acp."""

    def __init__(self, channel: Channel, identity: Identity, memory: Memory) -> None:
        self._channel = channel
        self._identity = identity
        self._runtime: Runtime = identity.runtime
        self._memory = memory
        self._capabilities: dict[str, Capability] = {}
        self._sent: dict[str, tuple[Outbound, int]] = {}
        self._renewing: set[str] = set()

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return PROTOCOL_CAPABILITIES

    async def open(self, who: Introduction) -> None:
        identity = self._identity
        await identity.find_out()
        self._capabilities = {one.intent: one for one in map(payloads.capability, who.capabilities)}
        me = identity.me
        registration = {
            "agent_id": me.agent_id,
            "domain": me.domain,
            "version": me.version,
            "capabilities": [msgspec.to_builtins(one) for one in self._capabilities.values()],
            "max_concurrent": who.concurrency,
        }
        await identity.post.register(msgspec.json.encode(registration))
        await self._channel.open()
        if identity.caller is not None:
            identity.caller.attach(self._channel)

    async def receive(self) -> Sequence[Inbound]:
        while True:
            heard: list[Inbound] = []
            for said in await self._channel.receive():
                match said:
                    case Frame():
                        heard += self._understand(said)
                    case Accepted():
                        heard += self._accepted(said)
                    case Answered():
                        heard += self._answered(said)
                    case Unsaid():
                        heard += self._unsaid(said)
            if heard:
                return heard

    def acknowledge(self, receipt: str) -> None:
        self._channel.acknowledge(receipt)

    def send(self, message: Outbound) -> None:
        self._say(message, 1)

    async def drain(self) -> None:
        """The engine itself bounds what it has under way."""

    def quiesce(self) -> None:
        """Work that comes now is left to the hub; what we called for still has to come."""
        if self._identity.caller is None:
            self._channel.quiesce()

    async def close(self) -> None:
        if self._identity.caller is not None:
            self._identity.caller.detach()
        await self._channel.close()

    # --- in ---

    def _understand(self, frame: Frame) -> Iterator[Inbound]:
        message = self._identity.read(frame.data)
        if message is None:
            return self._drop(frame)
        kind, receipt = message.message_type, frame.receipt
        if kind is MessageType.REQUEST and message.intent == intents.ACCEPT:
            self._memory.proposals[message.thread] = message
            yield proposal_of(message, receipt)
        elif kind is MessageType.REQUEST:
            yield from self._work(message, frame)
        elif kind is MessageType.EVENT and message.intent == intents.CANCEL:
            reason = (message.payload or {}).get("reason") or "cancelled"
            yield Cancel(task_id=task_in(frame.data) or message.thread, reason=reason, receipt=receipt)
        elif kind is MessageType.EVENT and message.intent in STEERED:
            yield STEERED[message.intent](task_id=task_in(frame.data) or message.thread, receipt=receipt)
        elif kind is MessageType.EVENT and message.intent == ANSWER:
            yield from self._reply(message, frame)
        else:
            caller = self._identity.caller
            is_known = self._identity.news(message)
            is_known = (caller is not None and caller.hear(message)) or is_known
            if not is_known:
                log.info("the hub said %s %s, and nobody waits for it", kind.value, message.intent)
            self._drop(frame)

    def _drop(self, frame: Frame) -> None:
        if frame.receipt is not None:
            self.acknowledge(frame.receipt)

    def _work(self, message: Message, frame: Frame) -> Iterator[Inbound]:
        try:
            opened = self._identity.opened(message)
        except Unopened as error:
            self._locked(message, frame, error)
            return
        id = task_in(frame.data) or message.thread
        capability = self._capabilities.get(message.intent or "")
        work = work_of(opened, frame.data, id, capability, frame.receipt, self._runtime.mint())
        if self._identity.ring.is_private(message.contract_id):
            work.correlation.about[PRIVATE] = "yes"
        yield work

    def _reply(self, message: Message, frame: Frame) -> Iterator[Inbound]:
        """What a person said. Sealed with a key that we lost since, it is told again when the work is begun anew."""
        try:
            payload = self._identity.opened(message).payload or {}
        except Unopened as error:
            log.warning("an answer stays shut: %s", error)
            return self._drop(frame)
        id, task_id = str(payload.get("question_id")), task_in(frame.data) or message.thread
        yield Answer(id=id, task_id=task_id, answer=payload.get("answer"), receipt=frame.receipt)

    def _locked(self, message: Message, frame: Frame, error: Unopened) -> None:
        """Work that we cannot read. With a lost key, ask for a new one: the hub seals it anew when it comes again."""
        collaboration = self._identity.ring.collaboration(message.contract_id)
        log.warning("a request of %s stays shut: %s", message.source_agent.agent_id, error)
        if error.is_lost and collaboration is not None and collaboration not in self._renewing:
            self._renewing.add(collaboration)
            pair = Pair()
            self._identity.ring.replace(collaboration, pair)
            body = intents.Rotate(collaboration_id=collaboration, public_key=pair.public_key)
            id = self._runtime.mint()
            self._channel.say(id, id, self._identity.ask_broker(intents.ROTATE, body, correlation_id=id))
            return
        what = "the payload cannot be opened here; shake hands again"
        refusal = Refusal(code=Code.SECURITY_POLICY_VIOLATION, message=what, details={"field": "payload"})
        id = self._runtime.mint()
        write = self._identity.write(
            MessageType.ERROR,
            id=id,
            to=message.source_agent,
            intent=message.intent,
            payload=self._under(message.contract_id, refusal.payload(message.thread)),
            correlation_id=message.thread,
        )
        self._channel.say(id, message.thread, write)
        self._drop(frame)

    # --- what became of what we said ---

    def _accepted(self, said: Accepted) -> Iterator[Inbound]:
        caller = self._identity.caller
        for id in said.ids:
            self._sent.pop(id, None)
            if caller is None or not caller.accepted(id):
                yield Accepted((id,))

    def _answered(self, said: Answered) -> Iterator[Inbound]:
        message = self._identity.read(said.data)
        if message is None:
            return
        if not said.is_refusal:
            caller = self._identity.caller
            self._identity.news(message)
            self._rotated(message)
            if caller is not None:
                caller.hear(message)
            return
        yield from self._refused(said.id, message)

    def _rotated(self, message: Message) -> None:
        """The answer to a key request of this link's own."""
        if message.message_type is MessageType.RESPONSE and message.intent == intents.ROTATE:
            body = msgspec.convert(message.payload, intents.Rotated)
            self._renewing.discard(body.collaboration_id)
            try:
                self._identity.ring.take(body.collaboration_id, body.key)
            except Unopened as error:
                log.warning("the new key is of no use: %s", error)

    def _refused(self, id: str, message: Message) -> Iterator[Inbound]:
        caller = self._identity.caller
        if caller is not None and caller.refused(id, message, None):
            return
        sent, tries = self._sent.pop(id, (None, 0))
        if sent is None:
            return
        error = codec.error(message)
        if self._identity.is_repetition(message):
            yield Accepted((id,))
        elif self._identity.is_stale(message) and tries < MOST_TRIES:
            self._say(sent, tries + 1)
        elif type(sent) in (Report, ProposalAnswer) and not TABLE[error.code].retry:  # no reason to give the work up
            log.info("the hub does not take a %s: %s", type(sent).__name__.lower(), error.message)
            yield Accepted((id,))
        else:
            yield Refused(
                request_id=sent.correlation.request_id, reason=error.message, retryable=TABLE[error.code].retry
            )

    def _unsaid(self, said: Unsaid) -> Iterator[Inbound]:
        caller = self._identity.caller
        if caller is not None and caller.refused(said.id, None, said.error):
            return
        sent, tries = self._sent.pop(said.id, (None, 0))
        if type(sent) is Outcome and sent.failure is None:
            words = f"the result cannot be told: {said.error}; store it and return where"
            error = {"message": words, "code": Code.INTERNAL_ERROR.value, "details": {"retryable": False}}
            content = failure(words, error, usage=sent.content.usage)
            self._say(msgspec.structs.replace(sent, content=content), tries + 1)
        elif sent is not None:
            log.error("a message about task %s cannot be said: %s", sent.correlation.task_id, said.error)
            yield Accepted((said.id,))

    # --- out ---

    def _say(self, message: Outbound, tries: int) -> None:
        self._sent[message.id] = message, tries
        lane = message.correlation.task_id
        match message:
            case Report():
                for id, piece in self._pieces(message):
                    self._channel.say(id, lane, piece)
                write = self._report(message)
            case Outcome():
                write = self._finish(message)
            case Decline():
                write = self._complain(message, declined(message))
            case Question():
                write = self._ask(message)
            case ProposalAnswer():
                write = self._agree(message)
            case _:
                raise NotSupported(f"a2acp has no {type(message).__name__}")
        self._channel.say(message.id, lane, write)

    def _write(
        self,
        kind: MessageType,
        message: Outbound,
        payload: dict[str, Any],
        *,
        id: str,
        intent: str | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> Write:
        correlation = message.correlation
        about = correlation.about
        payload["traceparent"] = f"00-{correlation.trace_id.replace('-', '')}-{trace.span_id(message.id)}-01"
        return self._identity.write(
            kind,
            id=id,
            to=Agent(agent_id=correlation.sender, domain=about["domain"], version=about["version"]),
            intent=intent or about["intent"],
            payload=self._under(about.get("contract_id"), payload),
            correlation_id=about.get(THREAD, correlation.task_id),
            seal=SEALED in about and kind is not MessageType.ERROR,
            beside=beside,
        )

    def _under(self, contract_id: str | None, payload: dict[str, Any]) -> dict[str, Any]:
        return payload if contract_id is None else {**payload, "contract_id": contract_id}

    def _pieces(self, report: Report) -> Iterator[tuple[str, Write]]:
        """All but the last piece of a long output. They go in line, so the receipt of the last is that of all."""
        output = report.content.output or ""
        for number in range((len(output) - 1) // PIECE):
            id, payload = part(report.id, number + 1), {"output": output[number * PIECE : (number + 1) * PIECE]}
            yield id, self._write(MessageType.EVENT, report, payload, id=id, intent=PROGRESS)

    def _report(self, report: Report) -> Write:
        output, step = report.content.output, report.content.named_step
        last = output[(len(output) - 1) // PIECE * PIECE :] if output else None
        content = msgspec.structs.replace(report.content, output=last, message=None if step is None else step.name)
        payload: dict[str, Any] = msgspec.to_builtins(mapping.progress_out(content))
        if content.file is not None:
            payload["file"] = content.file.id
        return self._write(MessageType.EVENT, report, payload, id=report.id, intent=PROGRESS)

    def _ask(self, query: Question) -> Write:
        return self._write(MessageType.EVENT, query, mapping.ask_out(query.ask), id=query.id, intent=QUESTION)

    def _finish(self, outcome: Outcome) -> Write:
        if outcome.failure is not None:
            return self._complain(outcome, failed(outcome.failure, is_personal=PERSONAL in outcome.correlation.about))
        value: Any = msgspec.json.decode(outcome.result_json) if outcome.result_json else (outcome.output or None)
        capability = self._capabilities.get(outcome.correlation.about["intent"])
        payload = payloads.payload(True if capability is None else capability.output_schema, value)
        beside: dict[str, Any] = {"value_in": payloads.value_in(value, payload)}
        if outcome.content.usage:
            beside["usage"] = outcome.content.usage
        return self._write(MessageType.RESPONSE, outcome, dict(payload), id=self._runtime.mint(), beside=beside)

    def _complain(self, message: Outbound, refusal: Refusal) -> Write:
        correlation = message.correlation
        payload = refusal.payload(correlation.about.get(THREAD, correlation.task_id))
        return self._write(MessageType.ERROR, message, payload, id=self._runtime.mint())

    def _agree(self, verdict: ProposalAnswer) -> Write:
        asked = self._memory.proposals.get(verdict.proposal)
        contract = None if asked is None else msgspec.convert(asked.payload, intents.Offer).contract
        public_key = None
        if verdict.accepted and contract is not None and contract.security.encryption == "aes256":
            pair = self._memory.offers.get(verdict.proposal)
            if pair is None:
                pair = self._memory.offers[verdict.proposal] = self._identity.ring.pair(contract)
            public_key = pair.public_key
        body = intents.Decision(accepted=verdict.accepted, reason=verdict.reason, public_key=public_key)
        return self._identity.write(
            MessageType.RESPONSE,
            id=self._runtime.mint(),
            to=BROKER,
            intent=intents.ACCEPT,
            payload=intents.payload(body),
            correlation_id=verdict.proposal,
        )
