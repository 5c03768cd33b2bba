"""The parts that a2acp needs in the SDK: tokens, keys, schemas, bytes over HTTP."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.unit.sdk.a2acp.harness import MemoryBroker, agree, soon
from tests.unit.sdk.harness import FakeRuntime

from dragoman import Agent, Misconfigured, NotAllowed, TaskFailed
from dragoman.protocols.a2acp import codec, mapping
from dragoman.protocols.a2acp.contracts import Capability, Contract
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.protocols.a2acp.types import Encryption, Message, MessageType, Stamp, TokenGrant, TokenRequest
from dragoman.sdk.a2acp.channel import HttpPost
from dragoman.sdk.a2acp.identity import TokenCache, claims
from dragoman.sdk.a2acp.keyring import KeyRing, Pair, Unopened, path_for
from dragoman.sdk.address import parse
from dragoman.sdk.failures import FAILURES, AuthFailed, RateLimitExceeded
from dragoman.sdk.links import LinkDown
from dragoman.sdk.work.outcome import raised
from dragoman.security.collaboration import CollaborationKey, Relation, granted

A, B = (Party(agent_id=id, domain="d", version="1.0.0") for id in "ab")


# -- tokens


async def test_two_calls_that_need_the_same_token_share_one_request(runtime: FakeRuntime) -> None:
    asked: list[TokenRequest] = []
    gate = asyncio.Event()

    async def fetch(request: TokenRequest) -> TokenGrant:
        asked.append(request)
        await gate.wait()
        until = runtime.now() + timedelta(seconds=request.ttl)
        return TokenGrant(token=f"t{len(asked)}", expires_at=until)

    tokens = TokenCache("a", runtime, fetch, ttl=100)
    both = asyncio.gather(tokens.token("b", ("x", "y")), tokens.token("b", ("y", "x", "y")))
    await asyncio.sleep(0)
    gate.set()
    assert await soon(both) == ["t1", "t1"]
    await runtime.advance(79)
    assert await tokens.token("b", ("x", "y")) == "t1"
    await runtime.advance(2)
    assert await tokens.token("b", ("x", "y")) == "t2"
    tokens.forget("b")
    assert await tokens.token("b", ("x", "y")) == "t3"
    assert [one.requested_capabilities for one in asked] == [("x", "y")] * 3


async def test_a_refused_token_is_asked_for_again(runtime: FakeRuntime) -> None:
    answers: list[Any] = [AuthFailed("no"), TokenGrant(token="t", expires_at=runtime.now() + timedelta(hours=1))]

    async def fetch(request: TokenRequest) -> TokenGrant:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return msgspec.convert(answer, TokenGrant, from_attributes=True)

    tokens = TokenCache("a", runtime, fetch)
    with pytest.raises(AuthFailed):
        await tokens.token("b")
    assert await tokens.token("b") == "t"


def test_what_is_no_token_is_not_read() -> None:
    for text in ("", "a.b", "a.!.c", "x.e30.y"):
        with pytest.raises(NotAllowed):
            claims(text)


# -- keys


def contract() -> Contract:
    capability = Capability(intent="i", input_schema=True, pii=True)
    return agree(capability, A, B, contract_id="k1", collaboration_id="c", now=FakeRuntime().now(), kid="kid")


def message(payload: dict[str, Any], encryption: Encryption = "none") -> Message:
    stamp = Stamp("00000000-0000-4000-8000-000000000000", FakeRuntime().now(), "t")
    kind = MessageType.REQUEST
    return codec.message(kind, stamp, source=A, target=B, intent="i", payload=payload, encryption=encryption)


def ring(runtime: FakeRuntime, me: str, key: CollaborationKey, path: Path | None = None) -> KeyRing:
    held = KeyRing(runtime, me, path)
    pair = held.pair(contract())
    grant = granted(key, pair.public_key, Relation(collaboration="c", source="a", target="b"), me)
    held.agreed(contract(), grant)
    held.agreed(contract(), grant)  # told twice
    return held


def test_what_one_seals_the_other_opens_and_nobody_changes_it(runtime: FakeRuntime) -> None:
    key = CollaborationKey(kid="kid", secret=bytes(32))
    one, other = ring(runtime, "a", key), ring(runtime, "b", key)
    clear = message({"name": "Jane", "contract_id": "k1", "correlation_id": "x"})
    sealed = one.seal(clear)
    assert set(sealed) == {"alg", "kid", "nonce", "ciphertext", "contract_id", "correlation_id"}
    assert other.open(message(sealed, "aes256")) == clear.payload
    with pytest.raises(Unopened) as moved:
        other.open(message({**sealed, "correlation_id": "y"}, "aes256"))
    with pytest.raises(Unopened) as unknown:
        other.open(message({**sealed, "kid": "other"}, "aes256"))
    with pytest.raises(Unopened) as elsewhere:
        other.open(message({**sealed, "contract_id": "k2"}, "aes256"))
    assert (moved.value.is_lost, unknown.value.is_lost, elsewhere.value.is_lost) == (False, True, True)
    assert "Jane" not in repr([one._ring, sealed])


async def test_an_old_key_opens_for_a_while_after_a_rotation(runtime: FakeRuntime) -> None:
    old, new = (CollaborationKey(kid=kid, secret=bytes([n]) * 32) for n, kid in enumerate(("kid", "kid2")))
    one, other = ring(runtime, "a", old), ring(runtime, "b", old)
    before = one.seal(message({"n": 1, "contract_id": "k1"}))
    pair = Pair()
    other.replace("c", pair)
    other.take("c", granted(new, pair.public_key, Relation(collaboration="c", source="a", target="b"), "b"))
    assert other.open(message(before, "aes256"))["n"] == 1
    assert other.seal(message({"contract_id": "k1"}))["kid"] == "kid2"
    await runtime.advance(601)
    with pytest.raises(Unopened):
        other.open(message(before, "aes256"))


def test_a_ring_is_kept_for_its_owner_only(runtime: FakeRuntime, tmp_path: Path) -> None:
    path = path_for(tmp_path, "b/../c")
    assert path == tmp_path / "keys" / "b_.._c.json"
    key = CollaborationKey(kid="kid", secret=bytes(range(32)))
    held = ring(runtime, "b", key, path)
    sealed = held.seal(message({"n": 1, "contract_id": "k1"}))
    assert KeyRing(runtime, "b", path).open(message(sealed, "aes256"))["n"] == 1
    path.chmod(0o644)
    with pytest.raises(Misconfigured, match="chmod 600"):
        KeyRing(runtime, "b", path)
    path.chmod(0o600)
    path.write_text("?")
    with pytest.raises(Misconfigured, match="holds no keys"):
        KeyRing(runtime, "b", path)
    held.forget("c")
    assert held.collaboration("k1") is None


# -- schemas


@pytest.mark.parametrize(
    ("schema", "value", "payload"),
    [
        ({"type": "object"}, {"a": 1}, {"a": 1}),
        ({"type": "integer"}, 3, {"result": 3}),
        ({"type": "string"}, None, {"result": None}),
        ({"type": "null"}, None, {}),
        ({}, {"a": 1}, {"a": 1}),
        ({}, [1], {"result": [1]}),
        ({"anyOf": [{"$ref": "#/$defs/X"}], "$defs": {"X": {"type": "object"}}}, {"x": 1}, {"result": {"x": 1}}),
    ],
)
def test_what_is_returned_becomes_an_object_and_back(schema: Any, value: Any, payload: Any) -> None:
    declared = mapping.output_schema(schema)
    assert mapping.value_out(value, declared)[0] == payload
    if isinstance(declared, dict) and declared.get("$comment"):
        assert mapping.value_in({**payload, "correlation_id": "x"}, declared) == value
        assert declared.get("$defs") == schema.get("$defs")


def test_what_the_protocol_puts_into_a_payload_is_not_the_handlers_unless_it_asks() -> None:
    payload = {"a": 1, "correlation_id": "x", "traceparent": "y"}
    assert mapping.content_in(payload, True) == {"a": 1}
    assert mapping.content_in(payload, {"properties": {"correlation_id": {}}}) == {"a": 1, "correlation_id": "x"}


# -- failures


def test_every_code_has_its_exception() -> None:
    assert set(FAILURES) == set(Code)
    for code, kind in FAILURES.items():
        error = kind("words")
        assert isinstance(error, TaskFailed)
        assert (error.code, str(error)) == (code.value, f"{code.value}: words")
        assert (error.retry_after > 0) == error.retryable


def test_a_failure_of_another_request_is_not_the_handlers_failure() -> None:
    own = raised(RateLimitExceeded("slow", retry_after=3)).report
    assert own is not None
    assert (own["code"], own["retry_after"]) == ("RATE_LIMIT_EXCEEDED", 3)
    other = raised(RateLimitExceeded("slow", task_id="elsewhere")).report
    assert other is not None
    assert "code" not in other


async def test_personal_text_is_not_logged(
    broker_of_two: tuple[MemoryBroker, Agent], caplog: pytest.LogCaptureFixture
) -> None:
    broker, agent = broker_of_two

    @agent.task("patient", pii=True)
    async def patient(name: str) -> None:
        raise LookupError(f"{name} is not there")

    with caplog.at_level(logging.DEBUG):
        async with broker.serving(agent), broker.client("a") as hub:
            with pytest.raises(TaskFailed):
                await soon(hub.call("patient", {"name": "Jane Roe"}))
    assert "LookupError" in caplog.text
    assert "Jane" not in caplog.text


@pytest.fixture
def broker_of_two(runtime: FakeRuntime) -> tuple[MemoryBroker, Agent]:
    broker = MemoryBroker(runtime)
    broker.let_in("a")
    broker.let_in("b")
    return broker, Agent("b", runtime=runtime)


def test_a_version_is_a_semantic_one(runtime: FakeRuntime) -> None:
    from dragoman.sdk.a2acp.identity import Identity

    with pytest.raises(Misconfigured, match=r"1\.2\.3"):
        Identity("a", None, runtime, version="2")  # type: ignore[arg-type]


# -- bytes


def complaint(refusal: Refusal) -> bytes:
    stamp = Stamp("00000000-0000-4000-8000-000000000000", FakeRuntime().now(), "t")
    return codec.encode(codec.message(MessageType.ERROR, stamp, source=A, target=B, payload=refusal.payload("x")))


def post(status: int, content: bytes, **headers: str) -> HttpPost:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == "Bearer secret"
        return httpx2.Response(status, content=content, headers=headers)

    address = parse("a2acp+http://hub:1", "secret")
    return HttpPost(address, transport=httpx2.MockTransport(answer))


WISH = TokenRequest(agent_id="a", target_agent_id="b")


async def test_an_agent_that_the_auth_service_does_not_know_is_refused_for_good() -> None:
    unknown = complaint(Refusal(code=Code.AUTH_FAILED, message="who?", details={"rule": "signature"}))
    lacking = complaint(Refusal(code=Code.AUTH_FAILED, message="not that", details={"rule": "capability"}))
    with pytest.raises(NotAllowed, match=r"who\?"):
        await post(401, unknown).token(WISH)
    with pytest.raises(AuthFailed, match="not that"):
        await post(401, lacking).token(WISH)
    with pytest.raises(LinkDown):
        await post(502, b"<html>").token(WISH)
    with pytest.raises(LinkDown):
        await post(200, b"<html>").token(WISH)


async def test_a_posts_answer_is_a_receipt_a_message_or_a_broken_connection() -> None:
    refusal = complaint(Refusal(code=Code.RATE_LIMIT_EXCEEDED, message="slow"))
    assert await post(202, b'{"status":"accepted"}').send(b"{}") == (True, b"")
    assert await post(200, refusal).send(b"{}") == (True, refusal)
    assert await post(429, refusal).send(b"{}") == (False, refusal)
    with pytest.raises(LinkDown) as down:
        await post(503, b"busy", **{"retry-after": "7"}).send(b"{}")
    assert down.value.retry_after == 7
    with pytest.raises(NotAllowed):
        await post(401, b"").poll()
    with pytest.raises(NotAllowed, match="slow"):
        await post(422, refusal).register(b"{}")
