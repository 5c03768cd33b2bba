"""How two agents come to terms and are held to them: tokens, contracts, encryption."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import jwt
import msgspec
import pytest
from tests.conformance.a2acp.samples import ADA, BOB, CAPABILITY, KEY, NONCE, START, TOKEN, held, tree

from dragoman.protocols.a2acp import codec, sealing, types
from dragoman.protocols.a2acp.contracts import Capability, Held, Standing, judge
from dragoman.protocols.a2acp.errors import A2acpError, Code
from dragoman.protocols.a2acp.types import Claims, Message
from dragoman.security.jwt import Authority, grant
from dragoman.security.keys import KeyRing, new_key
from dragoman.security.refusals import Refusal as Unfit
from dragoman.server.a2acp.tokens import RULES


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def read(said: dict[str, Any]) -> Message:
    return codec.decode(json.dumps(said).encode())


# -- tokens --

AT = int(START.timestamp())
GOOD: dict[str, Any] = {
    "sub": "ada", "iss": "a_domain-auth-service", "aud": "bob", "exp": AT + 600, "iat": AT, "capabilities": ["w", "r"],
    "domain": "lab",
}  # fmt: skip


SECRET = b"0123456789abcdef0123456789abcdef"
HUBS = Authority(KeyRing([new_key(AT)]).with_secret("shared", SECRET))


def signed(said: dict[str, Any]) -> str:
    return jwt.PyJWS().encode(json.dumps(said).encode(), SECRET, "HS256", headers={"kid": "shared"})


def verdict(said: dict[str, Any], **whose: Any) -> str | None:
    """The rule by which the auth service refuses a token that was signed with a good key."""
    found = HUBS.verify(signed(said), now=AT, **({"audience": "bob", "subject": "ada", "domain": "lab"} | whose))
    return RULES[found.reason] if isinstance(found, Unfit) else None


@pytest.mark.requirement("A2-TOK-2", "A2-TOK-10")
def test_the_documents_token_is_read(examples: dict[str, Any]) -> None:
    token = msgspec.convert(examples["claims"], Claims)
    assert json.loads(msgspec.json.encode(token)) == examples["claims"]
    whose = {"subject": "sdlc-test-agent", "domain": "a_domain", "audience": "dataset-provisioning-agent"}
    good = HUBS.verify(signed(examples["claims"]), now=1706371300, **whose)
    assert not isinstance(good, Unfit)
    assert good.capabilities == token.capabilities
    request = msgspec.convert(examples["token-request"], types.TokenRequest)
    assert (request.agent_id, request.target_agent_id, request.ttl) == (
        "sdlc-test-agent", "dataset-provisioning-agent", 3600,
    )  # fmt: skip
    assert request.requested_capabilities == token.capabilities
    grant = msgspec.convert(examples["token-grant"], types.TokenGrant)
    assert msgspec.to_builtins(grant) == examples["token-grant"]


@pytest.mark.requirement("A2-TOK-2", "a2acp-D3")
@pytest.mark.parametrize("name", list(GOOD))
def test_a_claim_that_is_missing_or_odd_is_refused(name: str) -> None:
    assert verdict(GOOD) is None
    rule = "audience" if name == "aud" else "claims"
    assert verdict({key: value for key, value in GOOD.items() if key != name}) == rule
    assert verdict({**GOOD, name: None}) == rule
    assert verdict({**GOOD, name: ["bob"] if name != "capabilities" else "w"}) == rule


@pytest.mark.requirement("A2-TOK-3", "A2-TOK-5", "A2-TOK-6", "A2-TOK-8", "a2acp-D3", "a2acp/all-D1")
@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"exp": AT - 59}, "expiration"),  # made for no time at all
        ({"iat": AT - 600, "exp": AT - 60}, "expiration"),
        ({"iat": AT - 600, "exp": AT - 59}, None),  # within the leeway
        ({"iat": AT + 60}, None),
        ({"iat": AT + 61}, "expiration"),
        ({"nbf": AT + 61}, "expiration"),
        ({"nbf": AT + 60}, None),
        ({"exp": AT + 24 * 3600}, None),
        ({"exp": AT + 24 * 3600 + 1}, "expiration"),
        ({"exp": 10**9 + AT}, "expiration"),
        ({"aud": "eve"}, "audience"),
        ({"aud": "Bob"}, "audience"),
        ({"iss": "eve"}, "issuer"),
        ({"sub": "eve"}, "subject"),
        ({"domain": "eve"}, "subject"),
    ],
)
def test_each_rule_of_a_token_is_held_to(changed: dict[str, Any], rule: str | None) -> None:
    assert verdict({**GOOD, **changed}) == rule


@pytest.mark.requirement("a2acp-D5")
def test_a_token_grants_what_was_asked_and_is_allowed() -> None:
    assert grant(["r", "w", "r"], ["w", "x", "r"]) == ("r", "w")
    assert grant(["r", "w"], ["w"]) == ("w",)
    assert grant([], ["w"]) == ()
    nothing = grant(["root"], ["w"])
    assert isinstance(nothing, Unfit)
    assert RULES[nothing.reason] == "capability"
    for ttl in (0, 10**9):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"agent_id": "a", "target_agent_id": "b", "ttl": ttl}, types.TokenRequest)


# -- contracts --


@pytest.mark.requirement("A2-CTR-5", "a2acp-D8")
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({}, None),
        ({"intent": "delete"}, "intent"),
        ({"target_agent": {"agent_id": "eve", "domain": "ward", "version": "2.1.0"}}, "target_agent.agent_id"),
        ({"target_agent": {"agent_id": "bob", "domain": "lab", "version": "2.1.0"}}, "target_agent.domain"),
        ({"source_agent": {"agent_id": "ada", "domain": "ward", "version": "1.2.3"}}, "source_agent.domain"),
        ({"source_agent": {"agent_id": "bob", "domain": "ward", "version": "2.1.0"}}, "source_agent.agent_id"),
    ],
)
def test_a_request_is_held_to_its_contract(changed: dict[str, Any], field: str | None) -> None:
    found = judge(held(), read(tree(**changed)), START)
    assert (found and (found.code, found.details["field"])) == (field and (Code.CONTRACT_VIOLATION, field))


@pytest.mark.requirement("A2-CTR-5", "a2acp-D8")
def test_an_agent_without_a_contract_learns_so_and_no_more() -> None:
    bare = judge(None, read(tree(payload={})), START)
    unknown = judge(None, read(tree()), START)
    stranger = {"agent_id": "eve", "domain": "lab", "version": "1.0.0"}
    foreign = judge(held(), read(tree(source_agent=stranger)), START)
    assert bare is not None
    assert "shake hands" in bare.message
    assert bare.details["field"] == "payload.contract_id"
    assert unknown is not None
    assert unknown == foreign  # whether it exists is nobody else's business
    assert unknown.code is Code.CONTRACT_VIOLATION


@pytest.mark.requirement("A2-CTR-5", "A2-RTE-4")
def test_a_response_goes_the_other_way() -> None:
    back = {"source_agent": tree()["target_agent"], "target_agent": tree()["source_agent"]}
    assert judge(held(), read(tree("response", **back)), START) is None
    assert judge(held(), read(tree("response", **back, intent=None)), START) is None
    assert judge(held(), read(tree("error", **back)), START) is None
    assert judge(held(), read(tree("event")), START) is None
    assert judge(held(), read(tree("response", **back, intent="other")), START) is not None
    assert judge(held(), read(tree("request", **back)), START) is not None


@pytest.mark.requirement("a2acp-D7")
def test_a_contract_that_is_over_is_refused_with_its_status() -> None:
    one = held()
    assert judge(one, read(tree()), after(86_399)) is None
    refusal = judge(one, read(tree()), after(86_400))
    assert refusal is not None
    assert (refusal.details["standing"], refusal.details["field"]) == ("expired", "payload.contract_id")
    ended = msgspec.structs.replace(one, standing=Standing.TERMINATED, since=after(5))
    refusal = judge(ended, read(tree()), after(5))
    assert refusal is not None
    assert refusal.details["standing"] == "terminated"
    renewed = msgspec.structs.replace(one, standing=Standing.SUPERSEDED, since=after(10))
    assert [renewed.honoured(after(seconds)) for seconds in (69, 70)] == [True, False]


# -- encryption --

SEALED = {"alg": "A256GCM", "kid": "k", "nonce": NONCE, "ciphertext": "C" * 40, "contract_id": "c-1",
          "correlation_id": "k-1"}  # fmt: skip
ENCRYPTED = {"auth_token": TOKEN, "encryption": "aes256"}


def private() -> Held:
    return held(capability=msgspec.structs.replace(CAPABILITY, pii=True), kid="k")


@pytest.mark.requirement("A2-PII-1", "a2acp-D13")
def test_personal_data_in_clear_is_refused() -> None:
    refusal = judge(private(), read(tree()), START)
    assert refusal is not None
    assert (refusal.code, refusal.details["pii"]) == (Code.SECURITY_POLICY_VIOLATION, True)
    assert "3" not in refusal.message  # nothing of the payload
    assert judge(private(), read(tree(payload=SEALED, security=ENCRYPTED)), START) is None
    other = judge(private(), read(tree(payload={**SEALED, "kid": "k9"}, security=ENCRYPTED)), START)
    assert other is not None
    assert other.details["field"] == "payload.kid"
    beside = judge(private(), read(tree(payload={**SEALED, "canary": "canary"}, security=ENCRYPTED)), START)
    assert beside is not None
    assert (beside.code, beside.details["pii"]) == (Code.SECURITY_POLICY_VIOLATION, True)
    assert "canary" not in repr(beside)


@pytest.mark.requirement("A2-PII-1", "a2acp-D13")
def test_a_label_of_encryption_is_held_against_the_payload() -> None:
    def said(payload: dict[str, Any]) -> Any:
        return codec.interpret(tree(payload=payload, security=ENCRYPTED), trust_label=True)

    around = {"contract_id": "c-1", "correlation_id": "k-1"}
    encrypted = held(kid="k", encrypt=True)
    for terms, payload, code in (
        (private(), {**around, "rows": 3}, Code.SECURITY_POLICY_VIOLATION),
        (private(), {**SEALED, "ciphertext": "in so many words"}, Code.SECURITY_POLICY_VIOLATION),
        (encrypted, {**around, "rows": 3}, Code.SECURITY_POLICY_VIOLATION),
        (encrypted, {**SEALED, "alg": "A128GCM"}, Code.SCHEMA_MISMATCH),  # nothing is shown, it is only unreadable
        (held(), {**around, "rows": 3}, Code.SCHEMA_MISMATCH),
    ):
        refusal = judge(terms, said(payload), START)
        assert refusal is not None
        assert (refusal.code, refusal.details.get("pii", False)) == (code, terms.contract.security.pii)


@pytest.mark.requirement("a2acp-D12")
def test_after_a_rotation_the_old_key_opens_what_was_on_its_way() -> None:
    turned = msgspec.structs.replace(
        private(),
        contract=msgspec.structs.replace(private().contract, kid="k2"),
        former_kid="k",
        rotated_at=after(10),
    )
    old = read(tree(payload=SEALED, security=ENCRYPTED))
    assert judge(turned, old, after(69)) is None
    assert judge(turned, old, after(70)) is not None


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
@pytest.mark.parametrize(
    ("field", "value"),
    [("alg", "none"), ("alg", "A128GCM"), ("nonce", "short"), ("nonce", "B" * 15 + "="), ("ciphertext", "C" * 21),
     ("ciphertext", "*" * 40), ("kid", "")],
)  # fmt: skip
def test_a_sealed_payload_has_its_form(field: str, value: str) -> None:
    for broken in ({**SEALED, field: value}, {name: said for name, said in SEALED.items() if name != field}):
        with pytest.raises(A2acpError) as caught:
            read(tree(payload=broken, security=ENCRYPTED))
        assert caught.value.field == f"payload.{field}"


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
def test_a_ciphertext_is_bound_to_its_envelope() -> None:
    message = read(tree(payload=SEALED, security=ENCRYPTED))
    bound = sealing.associated_data(message, "k")
    replace = msgspec.structs.replace
    moved = [
        replace(message, message_id="22222222-2222-4222-8222-222222222222"),
        replace(message, source_agent=BOB),
        replace(message, target_agent=ADA),
        replace(message, message_type="response"),
        replace(message, intent="other"),
        replace(message, payload={**SEALED, "contract_id": "c-2"}),
        replace(message, payload={**SEALED, "correlation_id": "k-2"}),
    ]
    others = {sealing.associated_data(read(msgspec.to_builtins(other)), "k") for other in moved}
    assert len(others | {bound, sealing.associated_data(message, "k2")}) == len(moved) + 2
    hop = replace(message, security=replace(message.security, auth_token="hop"))
    assert sealing.associated_data(hop, "k") == bound  # the broker's own changes leave it as it is


@pytest.mark.requirement("A2-SEC-3", "a2acp-D12")
def test_a_key_belongs_to_one_collaboration_and_both_ends_derive_it_alike() -> None:
    other = "D" * 43
    assert sealing.key_salt(KEY, other) == sealing.key_salt(other, KEY)
    infos = {sealing.key_info(*said) for said in (("l", "k", "a", "b"), ("l2", "k", "a", "b"), ("l", "k2", "a", "b"),
                                                  ("l", "k", "b", "a"), ("l", "ka", "", "b"))}  # fmt: skip
    assert len(infos | {sealing.wrap_data("l", "k", "a"), sealing.wrap_data("l", "k", "b")}) == 7


def test_a_capability_is_whole_with_nothing_but_its_intent_and_its_schema() -> None:
    least = msgspec.convert({"intent": "x", "input_schema": True}, Capability)
    assert (least.version, least.pii, least.timeout_seconds, least.output_schema) == ("1.0.0", False, 30, True)
