"""Both ends of every protocol's connection: frames come in, and whatever they are, the connection goes on.

hear      one frame; gives events, and never raises
reply     the frame that says no to a broken one, or None where nobody is told
heard     the other end's view of such a reply: it must be able to read it
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

from dragoman.core.ids import SECOND, AgentId
from dragoman.core.model.agents import Agent
from dragoman.protocols.a2acp import codec as a2acp_codec
from dragoman.protocols.agentmsg import connection as agentmsg
from dragoman.protocols.agentmsg.connection import Outbox
from dragoman.protocols.agentmsg.types import Stamp as AgentmsgStamp
from dragoman.protocols.chiffon import codec as chiffon_codec
from dragoman.protocols.coven import connection as coven
from dragoman.protocols.coven import types as coven_types
from dragoman.protocols.forge import codec as forge_codec
from dragoman.protocols.forge import packed
from dragoman.protocols.forge.codec import ResponseReceived
from dragoman.protocols.forge.types import Encoding
from dragoman.sdk.a2acp.identity import Identity
from dragoman.sdk.chiffon.link import ChiffonLink
from dragoman.sdk.forge.session import Session as ForgeAgentSession
from dragoman.sdk.links import Frame
from dragoman.sdk.runtime import SystemRuntime
from dragoman.security.jwt import Authority
from dragoman.security.keys import KeyRing, new_key
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.session import A2acpSession
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.chiffon.websocket import ChiffonSession
from dragoman.server.forge.bus import Bus
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.session import ForgeSession
from dragoman.server.limits import Limits as ServerLimits
from dragoman.server.refusals import RefusalLog
from dragoman.server.session import Batch, Invalid
from dragoman.stores.files import MemoryFiles
from dragoman.stores.memory import MemoryStore
from dragoman.wire import Role
from dragoman.wire.framing import LineFraming
from dragoman.wire.guard import Limits
from tests.conformance.a2acp.samples import BROKER
from tests.fuzz import samples
from tests.fuzz.decoders import secret_at
from tests.fuzz.samples import encoded
from tests.support.scripted import NOW, ScriptedHub

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class End:
    """One end of one connection, and a peer that reads its refusals."""

    def __init__(self, here: Any, there: Any, hear: Callable[[bytes], Sequence[Any]], broken: Any, no: Any) -> None:
        self.here = here
        self.there = there
        self.hear = hear
        self._broken = broken
        self._no = no
        self._numbers = count(1)

    def stamp(self) -> tuple[str, datetime]:
        number = next(self._numbers)
        return str(uuid.UUID(int=number, version=4)), START + timedelta(seconds=number)

    def reply(self, event: Any) -> bytes | None:
        return self._no(self.here, event, self.stamp()) if isinstance(event, self._broken) else None

    def heard(self, frame: bytes) -> None:
        for event in self.there.receive(frame):
            assert not isinstance(event, self._broken), event


class Link(NamedTuple):
    open: Callable[[], End]
    samples: Callable[[], Sequence[bytes]]
    trees: Callable[[], Sequence[Any]] = list


class HubEnd:
    """The hub's end of a connection: its session, with nothing behind it."""

    def __init__(self, protocol: str, session: Callable[[Any, Agent], Any]) -> None:
        self._agent = Agent(id=AgentId("ada"), protocol=protocol, created_at=NOW, token_hash="-", domain="lab")
        self._session = session(ScriptedHub(), self._agent)

    def receive(self, data: bytes) -> list[Any]:
        decoded = self._session.decode(self._agent, data)
        if not isinstance(decoded, Batch):
            return [decoded]
        return [self._session.decode(self._agent, frame) for frame in decoded.frames]

    def complaint(self, event: Any, stamp: Any) -> bytes | None:
        if not isinstance(event, Invalid):
            return None
        return self._session.encode_refusal(event.fault, event.context, self._agent) or None


class ChiffonAgent:
    """The SDK's end: it complains by itself about what it cannot read."""

    def __init__(self) -> None:
        self._sent: list[bytes] = []
        self._link = ChiffonLink(self, SystemRuntime())  # type: ignore[arg-type]
        self._link._name = "ada"  # as after `open`

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._sent.append(frame)

    def acknowledge(self, receipt: str) -> None: ...

    def receive(self, data: bytes) -> list[Any]:
        return [self._link._decode(Frame(data))]

    def complaint(self, event: Any, stamp: Any) -> bytes | None:
        return self._sent.pop() if self._sent else None


class A2acpAgent:
    """The SDK's end: what it cannot read is logged and dropped."""

    def __init__(self) -> None:
        post: Any = SimpleNamespace(token=None)
        self._me = Identity("ada", post, SystemRuntime())

    def receive(self, data: bytes) -> list[Any]:
        return [self._me.read(data)]

    def complaint(self, event: Any, stamp: Any) -> bytes | None:
        return None


class ReadsErrors:
    """The peer: a refusal is an error that can be read."""

    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self._decode = decode

    def receive(self, data: bytes) -> list[Any]:
        message = self._decode(data)
        assert getattr(message, "type", getattr(message, "message_type", None)) == "error"
        return []


def _refused(here: Any, event: Any, stamp: Any) -> bytes | None:
    frame: bytes | None = here.complaint(event, stamp)
    return frame


NO_CONNECTION: Any = SimpleNamespace()
"""These sessions only decode."""


def _chiffon(role: Role) -> Link:
    def session(hub: Any, agent: Agent) -> ChiffonSession:
        limits, log = ServerLimits(), RefusalLog(hub)
        handler = ChiffonHandler(hub, MemoryStore(), limits=limits, admin_hash=None, refusals=log)
        return ChiffonSession(handler, agent, NO_CONNECTION)

    def open() -> End:
        here: Any = HubEnd("chiffon", session) if role is Role.HUB else ChiffonAgent()
        return End(here, ReadsErrors(chiffon_codec.decode), here.receive, object, _refused)

    def trees() -> list[Any]:
        return [*samples.chiffon(), *samples.CONTROLS]

    return Link(open, lambda: encoded(trees()), trees)


def _a2acp(role: Role) -> Link:
    is_secret = secret_at("security", "auth_token")
    authority = Authority(KeyRing([new_key(NOW // SECOND)]))

    def session(hub: Any, agent: Agent) -> A2acpSession:
        hub.known[agent.id] = agent
        auth = AuthService(hub, BROKER, lambda: authority)
        vault: Any = None
        return A2acpSession(A2acpHandler(hub, MemoryStore(), auth, vault, limits=ServerLimits()), agent, NO_CONNECTION)

    def open() -> End:
        here: Any = HubEnd("a2acp", session) if role is Role.HUB else A2acpAgent()

        def hear(data: bytes) -> Sequence[Any]:
            events: list[Any] = here.receive(data)
            if is_secret(data):
                [event] = events
                assert samples.CANARY not in repr(event if role is Role.AGENT else getattr(event, "fault", None))
            return events

        return End(here, ReadsErrors(a2acp_codec.decode), hear, object, _refused)

    return Link(open, lambda: encoded(samples.a2acp()), samples.a2acp)


def _agentmsg(role: Role) -> Link:
    def no(here: Any, event: Any, stamp: Any) -> bytes | None:
        return here.refuse(event, AgentmsgStamp(*stamp))

    def open() -> End:
        here = agentmsg.Connection(role, "ada", outbox=Outbox())
        broken = agentmsg.Invalid | agentmsg.Outlived
        return End(here, agentmsg.Connection(role.peer, "ada"), lambda data: here.receive(data, START), broken, no)

    return Link(open, lambda: encoded(samples.agentmsg()), samples.agentmsg)


class ForgeAgent:
    """The SDK's end: what it cannot read is logged and dropped."""

    def __init__(self, encoding: Encoding) -> None:
        wire: Any = SimpleNamespace()
        self._session = ForgeAgentSession(wire, SystemRuntime())
        self._session._encoding = encoding  # as after `open`

    def receive(self, data: bytes) -> list[Any]:
        return list(self._session._read(data))

    def complaint(self, event: Any, stamp: Any) -> bytes | None:
        return None


def _forge(role: Role, *, lines: bool = False, encoding: Encoding = Encoding.JSON) -> Link:
    limits = Limits(bytes=20_000)

    def session(hub: Any, agent: Agent) -> ForgeSession:
        handler = ForgeHandler(hub, MemoryStore(), files=MemoryFiles(hub.mint), bus=Bus(), clock=lambda: 0.0)
        return ForgeSession(handler, agent.id, NO_CONNECTION, lambda *line: None, encoding=encoding, limits=limits)

    def answered(data: bytes) -> Any:
        [response] = forge_codec.read(data, Role.AGENT, encoding=encoding)
        assert isinstance(response, ResponseReceived)
        return SimpleNamespace(type="error")

    def open() -> End:
        here: Any = HubEnd("forge", session) if role is Role.HUB else ForgeAgent(encoding)
        framing = LineFraming(limits.bytes)

        def hear(data: bytes) -> Sequence[Any]:
            if not lines:
                return list(here.receive(data))
            whole = [line for line in framing.feed(data) if isinstance(line, bytes)]
            assert framing.held <= limits.bytes + 1
            return [event for line in whole for event in here.receive(line)]

        return End(here, ReadsErrors(answered), hear, object, _refused)

    def frames() -> list[bytes]:
        if encoding is Encoding.MSGPACK:
            return [packed.pack(tree) for tree in samples.forge()]
        return [frame + b"\n" * lines for frame in encoded(samples.forge())]

    return Link(open, frames, list if encoding is Encoding.MSGPACK else samples.forge)


def _coven(role: Role) -> Link:
    def open() -> End:
        hub, agent = coven.Connection(Role.HUB), coven.Connection(Role.AGENT)
        hub.receive(agent.send_register("a"))
        agent.receive(hub.send_welcome("s"))
        agent.receive(hub.send(coven_types.SendMessage(request_id="r1", content="do it")))
        here, there = (hub, agent) if role is Role.HUB else (agent, hub)
        return End(here, there, here.receive, (), None)

    return Link(open, samples.coven_agent if role is Role.HUB else samples.coven_server)


LINKS: dict[str, Link] = {
    f"{name} {role.value}": link
    for role in Role
    for name, link in {
        "chiffon": _chiffon(role),
        "agentmsg": _agentmsg(role),
        "a2acp": _a2acp(role),
        "forge": _forge(role),
        "forge lines": _forge(role, lines=True),
        "forge packed": _forge(role, encoding=Encoding.MSGPACK),
        "coven": _coven(role),
    }.items()
}
