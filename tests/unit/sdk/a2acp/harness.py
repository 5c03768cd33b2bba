"""A broker in memory, for several agents: tokens, registration, discovery, handshakes, contracts, keys and routing,
with the codec and the rules that the hub checks as well. Nothing is durable, and nothing is forgiven."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
from tests.unit.sdk.a2acp.members import Bond, Member, MemoryPost, MemoryReceiver
from tests.unit.sdk.harness import PATIENCE, FakeRuntime, settle

from dragoman import Agent, Client
from dragoman.protocols.a2acp import codec, intents, types
from dragoman.protocols.a2acp.contracts import Capability, Contract, DomainPolicy, Mode, SecurityPolicy, Standing, judge
from dragoman.protocols.a2acp.errors import A2acpError, Code, ErrorBody, Refusal
from dragoman.protocols.a2acp.intents import misspoken, untimely
from dragoman.protocols.a2acp.sealing import KeyGrant, associated_data
from dragoman.protocols.a2acp.types import RESERVED, Message, MessageType, Stamp
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.sdk.a2acp.channel import Channel
from dragoman.sdk.a2acp.entry import A2acpClient, service_over
from dragoman.sdk.a2acp.identity import BROKER, Identity
from dragoman.sdk.failures import failure
from dragoman.sdk.links import Frame, LinkDown
from dragoman.sdk.services import Participant, Service
from dragoman.security.collaboration import CollaborationKey, Relation, Seal, granted
from dragoman.security.jwt import ISSUER, grant
from dragoman.security.keys import LEEWAY, decode64, encode64
from dragoman.security.refusals import Refusal as Unfit
from dragoman.wire.role import Role
from dragoman.wire.schema import library


def _judged(said: types.Claims, source: Party, audience: str, now: float) -> Refusal | None:
    """The rules of a token that a client can get wrong."""
    if said.exp <= now - LEEWAY:
        return _unfit("expiration", "the token has expired")
    if said.aud != audience:
        return _unfit("audience", "the token is for another agent")
    if (said.sub, said.domain) != (source.agent_id, source.domain):
        return _unfit("subject", "the token is another agent's")
    return None


def _unfit(rule: str, what: str) -> Refusal:
    return Refusal(code=Code.AUTH_FAILED, message=what, details={"rule": rule})


def agree(
    capability: Capability,
    source: Party,
    target: Party,
    *,
    contract_id: str,
    collaboration_id: str,
    now: datetime,
    mode: Mode = "broker",
    encrypt: bool = False,
    seconds: float = 24 * 3600.0,
    kid: str | None = None,
) -> Contract:
    """The terms that follow from a capability and a handshake."""
    encrypted = encrypt or capability.pii or mode == "end-to-end"
    return Contract(
        contract_id=contract_id,
        collaboration_id=collaboration_id,
        intent=capability.intent,
        source_agent=source,
        target_agent=target,
        input_schema=capability.input_schema,
        output_schema=capability.output_schema,
        capability_version=capability.version,
        security=SecurityPolicy(
            encryption="aes256" if encrypted else "none",
            mode=mode,
            pii=capability.pii,
            validated=mode == "broker",
            required_capabilities=capability.required_capabilities,
        ),
        timeout_seconds=capability.timeout_seconds,
        created_at=now,
        expires_at=now + timedelta(seconds=seconds),
        kid=kid,
    )


class MemoryBroker:
    """`lose`: so many answers to POSTs get lost after the message was taken. `refusals`: what is said next instead."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self.members: dict[str, Member] = {}
        self.policies: list[DomainPolicy] = []
        self.bonds: dict[str, Bond] = {}
        self.handshakes: dict[str, tuple[Message, Contract, intents.Initiate]] = {}
        self.asked: dict[str, Message] = {}
        self.said: list[Message] = []
        self.plain: list[dict[str, Any]] = []
        self.tokens: list[types.TokenRequest] = []
        self.registrations: list[dict[str, Any]] = []
        self.acked: list[str] = []
        self.refusals: list[Refusal] = []
        self.lifetime = 24 * 3600.0
        self.lose = 0
        self.is_down = False
        self._seen: set[tuple[str, str]] = set()

    # --- who there is ---

    def let_in(self, id: str, domain: str = "lab", version: str = "1.0.0", allowed: tuple[str, ...] = ()) -> Member:
        member = self.members[id] = Member(Party(agent_id=id, domain=domain, version=version), allowed)
        return member

    def channels(self, id: str) -> tuple[MemoryPost, Callable[[], Channel]]:
        post = MemoryPost(self, self.members[id])
        return post, lambda: Channel(post, MemoryReceiver(self, self.members[id]))

    @asynccontextmanager
    async def serving(self, *agents: Agent) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(agent.serve_through(self._service)) for agent in agents]
        try:
            await settle()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _service(self, who: Participant) -> AbstractAsyncContextManager[Service]:
        return service_over(who, *self.channels(who.known_id), self.runtime)

    def client(self, id: str, **more: Any) -> Client:
        post, dial = self.channels(id)
        return Client(backend=A2acpClient(Identity(id, post, self.runtime, **more), dial), runtime=self.runtime)

    def cut(self, id: str) -> None:
        receiver = self.members[id].receiver
        assert receiver is not None
        receiver.frames.put_nowait(None)

    # --- tokens ---

    def token(self, member: Member, request: types.TokenRequest) -> types.TokenGrant:
        self.tokens.append(request)
        given = grant(request.requested_capabilities, member.allowed)
        if isinstance(given, Unfit):
            raise failure(msgspec.convert(_unfit("capability", given.message).payload(None)["error"], ErrorBody))
        now = self.runtime.now()
        until = now + timedelta(seconds=request.ttl)
        said = types.Claims(
            sub=member.party.agent_id,
            iss=ISSUER,
            aud=request.target_agent_id,
            exp=int(until.timestamp()),
            iat=int(now.timestamp()),
            capabilities=given,
            domain=member.party.domain,
        )
        return types.TokenGrant(token=f"h.{encode64(msgspec.json.encode(said))}.s", expires_at=until)

    # --- what agents say ---

    def heard(self, member: Member, frame: bytes) -> tuple[bool, bytes]:
        now = self.runtime.now()
        try:
            message = codec.decode(frame)
        except A2acpError as error:
            return False, self._complain(member, error.answer, error.thread)
        wrong = self._wrong(member, message)
        if wrong is not None:
            return False, self._complain(member, wrong, message.thread)
        said = msgspec.json.decode(decode64(message.security.auth_token.split(".")[1]), type=types.Claims)
        bad = _judged(said, member.party, message.target_agent.agent_id, now.timestamp())
        refusal = bad or (self.refusals.pop(0) if self.refusals else None)
        if refusal is not None:
            return False, self._complain(member, refusal, message.thread)
        self.said.append(message)
        try:
            answer = self._act(member, message, said)
        except _No as no:
            return False, self._complain(member, no.refusal, message.thread)
        if self.lose:
            self.lose -= 1
            raise LinkDown("the answer got lost")
        return True, answer

    def _wrong(self, member: Member, message: Message) -> Refusal | None:
        """Why a message that can be read does not count: who says it, when, and whether it came before."""
        fault = misspoken(message, Role.AGENT, member.party, BROKER)
        if fault is not None:
            return Refusal(code=fault[2], message=fault[1], details={"field": fault[0]})
        late = untimely(message.timestamp, self.runtime.now())
        if late is not None:
            return late
        mark = member.party.agent_id, message.message_id
        if mark in self._seen:
            return Refusal(code=Code.AUTH_FAILED, message="used before", details={"reason": "replayed"})
        self._seen.add(mark)
        return None

    def _act(self, member: Member, message: Message, said: types.Claims) -> bytes:
        kind = message.message_type
        if message.intent == intents.DISCOVER:
            return self._discover(message)
        if kind is MessageType.REQUEST and message.intent == intents.INITIATE:
            return self._initiate(message, said)
        if kind is MessageType.RESPONSE and message.intent == intents.ACCEPT:
            return self._decided(member, message)
        if message.intent == intents.TERMINATE:
            return self._terminate(member, message)
        if message.intent == intents.ROTATE:
            return self._rotate(member, message)
        if kind is MessageType.EVENT and message.intent == intents.CANCEL:
            asked = self.asked[message.thread]
            self._tell(asked.target_agent, MessageType.EVENT, intents.CANCEL, {"correlation_id": message.thread})
            self._tell(
                asked.source_agent,
                MessageType.ERROR,
                asked.intent,
                Refusal(code=Code.INTERNAL_ERROR, message="cancelled", details={"kind": "cancelled"}).payload(
                    message.thread
                ),
            )
            return b""
        return self._route(message)

    def _discover(self, message: Message) -> bytes:
        asked = msgspec.convert(message.payload, intents.Discover)
        found = tuple(
            intents.Offering(agent=member.party, capability=one, available=member.receiver is not None)
            for member in self.members.values()
            for one in member.capabilities.values()
            if asked.agent_id in (None, member.party.agent_id)
            and asked.intent in (None, one.intent)
            and asked.domain in (None, member.party.domain)
        )
        return self._reply(message, intents.Discovered(capabilities=found))

    def _initiate(self, message: Message, said: types.Claims) -> bytes:
        asked = msgspec.convert(message.payload, intents.Initiate)
        target = self.members[asked.target_agent_id]
        capability = target.capabilities[asked.requested_intent]
        missing = set(capability.required_capabilities) - set(said.capabilities)
        if missing:
            raise _No(Refusal(code=Code.AUTH_FAILED, message="lacks", details={"missing": sorted(missing)}))
        source = message.source_agent
        domains = source.domain, target.party.domain
        if domains[0] != domains[1] and domains not in {
            (one.source_domain, one.target_domain) for one in self.policies
        }:
            raise _No(Refusal(code=Code.SECURITY_POLICY_VIOLATION, message="no domain policy lets you ask there"))
        contract = agree(
            capability,
            source,
            target.party,
            contract_id=f"contract-{len(self.handshakes)}",
            collaboration_id=asked.collaboration_id or f"collaboration-{len(self.handshakes)}",
            now=self.runtime.now(),
            mode=asked.mode,
            encrypt=asked.encrypt,
            seconds=self.lifetime,
            kid=f"kid-{len(self.handshakes)}",
        )
        handshake = self.runtime.mint()
        self.handshakes[handshake] = message, contract, asked
        offer = intents.Offer(
            handshake_id=handshake,
            source_agent=source,
            requested_intent=capability.intent,
            contract=contract,
            correlation_id=handshake,
        )
        self._tell(target.party, MessageType.REQUEST, intents.ACCEPT, intents.payload(offer))
        return b""

    def _decided(self, member: Member, message: Message) -> bytes:
        asked, contract, initiate = self.handshakes[message.thread]
        decision = msgspec.convert(message.payload, intents.Decision)
        if not decision.accepted:
            what = Refusal(code=Code.CONTRACT_VIOLATION, message=f"declined: {decision.reason}")
            self._tell(asked.source_agent, MessageType.ERROR, intents.INITIATE, what.payload(asked.thread))
            return b""
        bond = self.bonds[contract.contract_id] = Bond(contract, self.runtime.now())
        if contract.security.encryption == "aes256":
            assert initiate.public_key is not None
            assert decision.public_key is not None
            bond.public = {
                contract.source_agent.agent_id: initiate.public_key,
                contract.target_agent.agent_id: decision.public_key,
            }
            bond.keys = [msgspec.structs.replace(CollaborationKey.new(), kid=contract.kid)]
        for party, thread in ((contract.source_agent, asked.thread), (contract.target_agent, None)):
            body = intents.Established(
                collaboration_id=contract.collaboration_id,
                contract=contract,
                key=self._grant(bond, party.agent_id),
                correlation_id=thread,
            )
            kind = MessageType.EVENT if thread is None else MessageType.RESPONSE
            self._tell(party, kind, intents.ACCEPT if thread is None else intents.INITIATE, intents.payload(body))
        return b""

    def _grant(self, bond: Bond, receiver: str) -> KeyGrant | None:
        if not bond.keys:
            return None
        contract = bond.held.contract
        source, target = contract.parties
        if contract.security.mode == "end-to-end":
            other = target if receiver == source else source
            return KeyGrant(kid=bond.keys[0].kid, public_key=bond.public[other])
        relation = Relation(collaboration=contract.collaboration_id, source=source, target=target)
        return granted(bond.keys[0], bond.public[receiver], relation, receiver)

    def _of(self, collaboration_id: str) -> Bond:
        for bond in reversed(self.bonds.values()):
            if bond.held.contract.collaboration_id == collaboration_id:
                return bond
        raise _No(Refusal(code=Code.CAPABILITY_NOT_FOUND, message="no such collaboration"))

    def _terminate(self, member: Member, message: Message) -> bytes:
        asked = msgspec.convert(message.payload, intents.Terminate)
        bond, now, me = self._of(asked.collaboration_id), self.runtime.now(), member.party.agent_id
        bond.held = msgspec.structs.replace(bond.held, standing=Standing.TERMINATED, since=now, by=me)
        body = intents.Terminated(collaboration_id=asked.collaboration_id, by=me, reason=asked.reason)
        self._tell(self._other(bond, me), MessageType.EVENT, intents.TERMINATE, intents.payload(body))
        return self._reply(message, body)

    def _rotate(self, member: Member, message: Message) -> bytes:
        asked = msgspec.convert(message.payload, intents.Rotate)
        bond, me = self._of(asked.collaboration_id), member.party.agent_id
        bond.public[me] = asked.public_key
        bond.keys.insert(0, msgspec.structs.replace(CollaborationKey.new(), kid=f"rotated-{len(bond.keys)}"))
        turned = msgspec.structs.replace(bond.held.contract, kid=bond.keys[0].kid)
        bond.held = msgspec.structs.replace(
            bond.held, contract=turned, former_kid=bond.held.contract.kid, rotated_at=self.runtime.now()
        )
        answer = b""
        for party in (member.party, self._other(bond, me)):
            grant = self._grant(bond, party.agent_id)
            assert grant is not None
            body = intents.Rotated(
                collaboration_id=asked.collaboration_id, contract_id=bond.held.contract.contract_id, key=grant
            )
            if party is member.party:
                answer = self._reply(message, body)
            else:
                self._tell(party, MessageType.EVENT, intents.ROTATE, intents.payload(body))
        return answer

    def _other(self, bond: Bond, me: str) -> Party:
        contract = bond.held.contract
        return contract.target_agent if me == contract.source_agent.agent_id else contract.source_agent

    # --- routing ---

    def _route(self, message: Message) -> bytes:
        bond = self.bonds.get(message.contract_id or "")
        refusal = judge(None if bond is None else bond.held, message, self.runtime.now())
        if refusal is not None:
            raise _No(refusal)
        assert bond is not None
        payload, contract = message.payload or {}, bond.held.contract
        is_sealed = message.security.encryption == "aes256"
        if is_sealed and contract.security.mode == "broker":
            key = next(key for key in bond.keys if key.kid == payload["kid"])
            opened = Seal(key).open(payload, associated_data(message, key.kid))
            assert isinstance(opened, bytes), opened
            payload = {**msgspec.json.decode(opened), **{k: payload[k] for k in codec_ids if k in payload}}
        if contract.security.mode == "broker":
            schema = {"request": contract.input_schema, "response": contract.output_schema}.get(message.message_type)
            compiled = library.compile(True if schema is None else schema)
            faults = [{"pointer": one.pointer} for one in compiled.faults(compiled.content(payload, RESERVED))]
            if faults:
                raise _No(Refusal(code=Code.CONTRACT_VIOLATION, message="does not fit", details={"faults": faults}))
        self.plain.append(payload)
        if message.message_type is MessageType.REQUEST:
            self.asked[message.thread] = message
        if is_sealed and contract.security.mode == "end-to-end":
            self._deliver(message.target_agent.agent_id, codec.encode(message))
            return b""
        self._tell(
            message.target_agent,
            message.message_type,
            message.intent,
            payload,
            source=message.source_agent,
            key=bond.keys[0] if is_sealed else None,
        )
        return b""

    def _tell(
        self,
        to: Party,
        kind: MessageType,
        intent: str | None,
        payload: dict[str, Any],
        *,
        source: Party = BROKER,
        key: CollaborationKey | None = None,
    ) -> None:
        made = codec.message(kind, self._stamp(), source=source, target=to, intent=intent, payload=payload)
        if key is not None:
            clear = {name: payload[name] for name in codec_ids if name in payload}
            content = msgspec.json.encode({name: value for name, value in payload.items() if name not in clear})
            sealed = Seal(key).shut(content, associated_data(made, key.kid))
            security = msgspec.structs.replace(made.security, encryption="aes256")
            made = msgspec.structs.replace(made, payload={**sealed, **clear}, security=security)
        self._deliver(to.agent_id, codec.encode(made))

    def _deliver(self, to: str, frame: bytes) -> None:
        member = self.members[to]
        if member.receiver is None:
            member.owed.append(frame)
        else:
            member.receiver.frames.put_nowait(Frame(frame, "delivery"))

    def _reply(self, asked: Message, body: intents.Body) -> bytes:
        return codec.encode(codec.answer(asked, self._stamp(), intents.payload(body), source=BROKER))

    def _complain(self, member: Member, refusal: Refusal, thread: str | None) -> bytes:
        kind, payload = MessageType.ERROR, refusal.payload(thread)
        return codec.encode(
            codec.message(
                kind, self._stamp(), source=BROKER, target=member.party, payload=payload, correlation_id=thread
            )
        )

    def _stamp(self) -> Stamp:
        return Stamp(self.runtime.mint(), self.runtime.now(), "broker")

    def count(self, intent: str, kind: MessageType = MessageType.REQUEST) -> int:
        return sum(message.intent == intent and message.message_type is kind for message in self.said)


codec_ids = ("contract_id", "collaboration_id", "correlation_id", "traceparent")


class _No(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, PATIENCE)
