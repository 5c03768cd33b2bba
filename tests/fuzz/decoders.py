"""Every decoder that is given bytes from outside, in one table.

read        takes the bytes; gives what they mean, or raises one of `refusals` and nothing else
again       writes what was read; read once more, it must be the same
steps       so many lines of Python at most, and so many more for each byte that came
is_secret   whether the canary stands in these bytes where a secret stands; then no refusal may show it
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request

from dragoman.api.bodies import shape
from dragoman.api.problems import Problem, Reason
from dragoman.api.routes import SERVED
from dragoman.app import settings
from dragoman.protocols.a2acp import codec as a2acp
from dragoman.protocols.a2acp import flow
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.types import Claims
from dragoman.protocols.agentmsg import codec as agentmsg
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.chiffon import chunks
from dragoman.protocols.chiffon import codec as chiffon
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.protocols.coven import codec as coven
from dragoman.protocols.coven.errors import Malformed
from dragoman.protocols.forge import codec as forge
from dragoman.protocols.forge import packed
from dragoman.protocols.forge.codec import EventReceived, NoticeReceived, RequestReceived, ResponseReceived
from dragoman.protocols.forge.types import Encoding
from dragoman.sandbox import egress_proxy
from dragoman.security import urls
from dragoman.security.collaboration import CollaborationKey, Seal, Unopened
from dragoman.security.jwt import Authority, Issued
from dragoman.security.keys import KeyRing, new_key
from dragoman.wire import Role, guard
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.schema import compatibility, library
from tests.fuzz import samples
from tests.fuzz.samples import CANARY, encoded

NOW = 1_800_000_000
LIMITS = guard.Limits(bytes=100_000)


class Decoder(NamedTuple):
    read: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...]
    samples: Callable[[], Sequence[bytes]]
    trees: Callable[[], Sequence[Any]] = list
    again: Callable[[Any], bytes] | None = None
    steps: tuple[int, int] = (3000, 30)
    is_secret: Callable[[bytes], bool] = lambda data: False


def secret_at(*path: str) -> Callable[[bytes], bool]:
    """Whether the canary is in these bytes once, and at this place."""

    def stands(data: bytes) -> bool:
        if data.count(CANARY.encode()) != 1:
            return False
        try:
            found = json.loads(data)
            for step in path:
                found = found[step]
        except (ValueError, KeyError, TypeError, RecursionError):
            return False
        return bool(found == CANARY)

    return stands


_json = msgspec.json.Encoder().encode

# -- JSON in general, and the protocols --


def _labels(data: bytes) -> chunks.Label:
    return chunks.parse(data.decode("utf-8", "replace"))


def _forge(encoding: Encoding) -> Callable[[bytes], list[Any]]:
    def read(data: bytes) -> list[Any]:
        heard = []
        for reader in Role:
            events = forge.read(data, reader, encoding=encoding, limits=LIMITS)
            assert len(events) <= forge.MOST_BATCHED
            heard += [
                (reader, event)
                for event in events
                if isinstance(event, RequestReceived | EventReceived | NoticeReceived | ResponseReceived)
            ]
        for one in forge.split(data, encoding=encoding, limits=LIMITS):
            assert isinstance(one, bytes)
        for reader, event in heard:  # whatever was understood can be said again, and means the same
            (same,) = forge.read(forge.write(event.message, encoding), reader, encoding=encoding, limits=LIMITS)
            assert same.message == event.message
        return heard

    return read


def _coven(read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> dict[str, Any]:
    return {
        "read": read,
        "again": lambda value: b"" if value is None else write(value),
        "refusals": (Malformed,),
    }


# -- credentials and seals --


@cache
def _authority() -> tuple[Authority, str]:
    authority = Authority(KeyRing([new_key(NOW - 1000)]).with_secret("shared", bytes(range(40))))
    issued = authority.issue(
        subject="ada", audience="bob", domain="lab", capabilities=["read:datasets"], ttl=3600, now=NOW
    )
    assert isinstance(issued, Issued)
    return authority, issued.token


def _token(data: bytes) -> Claims | None:
    authority, good = _authority()
    text = data.decode("utf-8", "surrogateescape")
    found = authority.verify(text, audience="bob", now=NOW, subject="ada", domain="lab")
    if isinstance(found, Claims):
        assert text == good, "a token that was not issued"
        return found
    shown = f"{found!r} {found}"
    assert not any(len(part) > 8 and part in shown for part in text.split("."))
    return None


@cache
def _seal() -> tuple[Seal, bytes]:
    seal = Seal(CollaborationKey(kid="k-1", secret=bytes(range(32))))
    return seal, msgspec.json.encode(seal.shut(CANARY.encode(), b"bound"))


def _opened(data: bytes) -> bytes | None:
    seal, good = _seal()
    tree = guard.check(data, LIMITS)
    found = seal.open(tree if isinstance(tree, dict) else {}, b"bound")
    if isinstance(found, Unopened):
        assert CANARY not in f"{found!r} {found}"
    else:
        assert {name: tree[name] for name in ("alg", "kid", "nonce", "ciphertext")} == json.loads(good)
    return None


def _url(data: bytes) -> Any:
    return urls._parts(data.decode("utf-8", "replace"))


def _way_out(data: bytes) -> None:
    """What a sandboxed agent says to its doorkeeper, who lets it nowhere."""
    try:
        egress_proxy._reach(data.split(b"\r\n", 1)[0].decode("ascii"), [])
    except (egress_proxy.Refusal, ValueError, IndexError):
        return
    raise AssertionError("it got out")


# -- schemas --

INSTANCES: tuple[Any, ...] = (None, CANARY, 5, [CANARY, {"a": CANARY}], {"rows": CANARY, "n": {"n": [CANARY]}, "m": 2})


def _schema(data: bytes) -> None:
    """A schema, what it says of a few documents, and whether it fits itself and others."""
    tree = guard.check(data, LIMITS)
    compiled = library.compile(tree)
    for instance in INSTANCES:
        faults = compiled.faults(instance)
        assert compiled.accepts(instance) == (not faults)
        assert CANARY not in repr(faults)
    for other in (tree, *samples.SCHEMAS):
        for target, source in ((tree, other), (other, tree)):
            verdict = compatibility.accepts(target, source)
            if verdict.answer is compatibility.Answer.YES:
                takes, sends = library.compile(target), library.compile(source)
                assert not [one for one in INSTANCES if sends.accepts(one) and not takes.accepts(one)]


# -- files and the management API --

_FOLDER = tempfile.TemporaryDirectory(prefix="dragoman-fuzz-")


def _settings(data: bytes) -> Any:
    file = Path(_FOLDER.name) / "dragoman.toml"
    file.write_bytes(data)
    loaded = settings.load(file=file, environ={})
    loaded.settings.core_rules()
    return loaded


def _variables(data: bytes) -> Any:
    lines = [line.partition("=") for line in data.decode("utf-8", "replace").splitlines()]
    return settings.load(environ={name: value for name, _, value in lines})


BODIES = tuple(dict.fromkeys(one.body for one in SERVED if one.body is not None))
QUERIES = tuple(dict.fromkeys(one.query for one in SERVED if one.query is not None))


def _body(data: bytes) -> None:
    tree = guard.check(data, LIMITS)
    for form in BODIES:
        with contextlib.suppress(Problem):
            shape(tree, form, Reason.INVALID_BODY)


def _query(data: bytes) -> None:
    request = Request({"type": "http", "query_string": data, "headers": [], "path": "/", "method": "GET"})
    for form in QUERIES:
        with contextlib.suppress(Problem):
            shape(dict(request.query_params), form, Reason.INVALID_QUERY)


def _json_samples(trees: Callable[[], Sequence[Any]]) -> dict[str, Any]:
    return {"trees": trees, "samples": lambda: encoded(list(trees()))}


TASK = {
    "type": "review", "input": {"a": 1}, "priority": "high", "dependencies": ["x"], "deadline": "2026-03-01T12:00:00Z",
    "budget": {"budget_usd": 1.5, "max_tokens": 5}, "hints": {"max_duration_seconds": 5}, "attachments": ["f"],
}  # fmt: skip
AGENT = {
    "agent_id": "a", "protocol": "forge", "kind": "k", "capabilities": ["c"], "command": ["x"], "cwd": "/x",
    "env": {"A": "b"}, "restart": "never", "limits": {"memory_mb": 5}, "allow_hosts": ["a.b:1"], "max_concurrent": 2,
}  # fmt: skip
OTHERS: list[Any] = [{"reason": "r"}, {"answer": None}, {"input": {}}, {"target": "/tmp/x"}, {}]

DECODERS: dict[str, Decoder] = {
    "wire.guard": Decoder(
        lambda data: guard.check(data, LIMITS), (RemoteProtocolError,), again=_json, steps=(200, 40),
        **_json_samples(lambda: [*samples.agentmsg(), *samples.forge()]),
    ),
    "chiffon.codec": Decoder(
        chiffon.decode, (ChiffonError,), again=chiffon.encode, **_json_samples(samples.chiffon),
        is_secret=secret_at("x_custom_fields", "token"),
    ),
    "chiffon.registration": Decoder(
        chiffon.decode_registration, (ChiffonError,), again=_json, **_json_samples(lambda: [samples.REGISTRATION])
    ),
    "chiffon.chunks": Decoder(
        _labels, (chunks.ChunkError,), lambda: [b"bytes 0-5 of 5", b"bytes 0-256k", b"bytes 1024-2k of 512k"],
    ),
    "agentmsg.codec": Decoder(
        lambda data: agentmsg.interpret(agentmsg.parse(data)), (AgentmsgError,), again=agentmsg.encode,
        **_json_samples(samples.agentmsg),
    ),
    "a2acp.codec": Decoder(
        a2acp.decode, (A2acpError,), again=a2acp.encode, **_json_samples(samples.a2acp),
        is_secret=secret_at("security", "auth_token"),
    ),
    "a2acp.flow": Decoder(flow.read, (ValueError,), **_json_samples(samples.flows)),
    "forge.codec": Decoder(_forge(Encoding.JSON), (), **_json_samples(samples.forge), steps=(8000, 60)),
    "forge.codec packed": Decoder(
        _forge(Encoding.MSGPACK), (), lambda: [packed.pack(tree) for tree in samples.forge()], steps=(8000, 200)
    ),
    "forge.packed": Decoder(
        lambda data: packed.unpack(data, LIMITS)[0], (RemoteProtocolError,), again=packed.pack, steps=(200, 60),
        samples=lambda: [packed.pack(tree) for tree in samples.forge()],
    ),
    "coven.codec agent": Decoder(**_coven(coven.decode_agent, coven.encode_agent), samples=samples.coven_agent),
    "coven.codec server": Decoder(**_coven(coven.decode_server, coven.encode_server), samples=samples.coven_server),
    "coven.codec response": Decoder(
        **_coven(coven.decode_response, coven.encode_response), samples=samples.coven_calls
    ),
    "coven.codec send": Decoder(**_coven(coven.decode_send, coven.encode_send), samples=samples.coven_calls),
    "coven.codec follow": Decoder(**_coven(coven.decode_follow, coven.encode_follow), samples=samples.coven_calls),
    "coven.codec cancel": Decoder(**_coven(coven.decode_cancel, coven.encode_cancel), samples=samples.coven_calls),
    "security.jwt": Decoder(
        _token, (), lambda: [_authority()[1].encode(), b"eyJhbGciOiJub25lIn0.e30."], steps=(1500, 5)
    ),
    "security.sealing": Decoder(
        _opened, (RemoteProtocolError,), lambda: [_seal()[1]], lambda: [json.loads(_seal()[1])]
    ),
    "security.urls": Decoder(
        _url, (urls.UrlRefused,), lambda: [b"https://example.org/cb?x=1", b"http://[::1]:8080/", b"https://a:b@c:99/"]
    ),
    "sandbox.egress": Decoder(
        _way_out, (), lambda: [b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n", b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n"]
    ),
    "wire.schema": Decoder(
        _schema, (RemoteProtocolError, library.SchemaError), **_json_samples(lambda: samples.SCHEMAS),
        steps=(4_000_000, 2000),
    ),
    "app.settings": Decoder(
        _settings, (settings.SettingsError,), lambda: [samples.TOML], steps=(60_000, 300),
        is_secret=lambda data: b'env = { KEY = "%b" }\n' % CANARY.encode() in data and b"\n[[agents]]\n" in data,
    ),
    "app.settings environ": Decoder(
        _variables, (settings.SettingsError,), steps=(200_000, 1000),
        samples=lambda: [b"DRAGOMAN_PORT=1\nDRAGOMAN_RULES__RETRY_DELAYS_SECONDS=1,2\nDRAGOMAN_LOG__LEVEL=info\n"],
    ),
    "api.bodies": Decoder(_body, (RemoteProtocolError,), **_json_samples(lambda: [TASK, AGENT, *OTHERS])),
    "api.queries": Decoder(
        _query, (), steps=(6000, 60),
        samples=lambda: [b"limit=5&cursor=x&status=queued&full=1", b"wait=3.5&history=1&raw=0&after=12", b"name=%ff"],
    ),
}  # fmt: skip
