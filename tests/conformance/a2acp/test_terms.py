"""How two agents come to terms and are held to them: tokens, handshakes, contracts, encryption, domain policies."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import jwt
import msgspec
import pytest
from tests.conformance.a2acp.samples import ADA, BOB, CAPABILITY, KEY, NONCE, START, TOKEN, contract, held, tree

from dragoman.protocols.a2acp import claims, codec, sealing
from dragoman.protocols.a2acp.claims import Claims
from dragoman.protocols.a2acp.contracts import (
    STANDINGS,
    Capability,
    Change,
    DomainPolicy,
    Held,
    Standing,
    agree,
    change,
    conform,
    judge,
    policy,
    renew,
    rotate,
)
from dragoman.protocols.a2acp.errors import A2acpError, Code, Refusal
from dragoman.protocols.a2acp.types import Message
from dragoman.security import grants
from dragoman.security.jwt import Authority
from dragoman.security.keys import KeyRing, new_key
from dragoman.security.refusals import Refusal as Unfit
from dragoman.server.a2acp.tokens import RULES
from dragoman.wire import LocalProtocolError
from dragoman.wire.schema.library import Library


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
    request = msgspec.convert(examples["token-request"], claims.TokenRequest)
    assert (request.agent_id, request.target_agent_id, request.ttl) == (
        "sdlc-test-agent", "dataset-provisioning-agent", 3600,
    )  # fmt: skip
    assert request.requested_capabilities == token.capabilities
    grant = msgspec.convert(examples["token-grant"], claims.TokenGrant)
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
    assert grants.grant(["r", "w", "r"], ["w", "x", "r"]) == ("r", "w")
    assert grants.grant(["r", "w"], ["w"]) == ("w",)
    assert grants.grant([], ["w"]) == ()
    nothing = grants.grant(["root"], ["w"])
    assert isinstance(nothing, Unfit)
    assert RULES[nothing.reason] == "capability"
    for ttl in (0, 10**9):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"agent_id": "a", "target_agent_id": "b", "ttl": ttl}, claims.TokenRequest)


# -- contracts --


@pytest.mark.requirement("A2-CTR-1", "a2acp-D7", "a2acp-D6")
def test_a_contract_follows_from_the_targets_capability() -> None:
    terms = contract()
    assert (terms.input_schema, terms.output_schema) == (CAPABILITY.input_schema, CAPABILITY.output_schema)
    assert (terms.source_agent, terms.target_agent, terms.capability_version) == (ADA, BOB, "1.4.0")
    assert terms.expires_at - terms.created_at == timedelta(hours=24)
    assert terms.security.required_capabilities == ("write:datasets",)
    assert (terms.security.encryption, terms.security.validated, terms.timeout_seconds) == ("none", True, 30)
    whole = msgspec.to_builtins(terms)
    assert msgspec.convert(whole, type(terms)) == terms
    assert {"contract_id", "collaboration_id", "input_schema", "output_schema", "security", "expires_at"} <= set(whole)


@pytest.mark.requirement("A2-PII-2", "a2acp-D12", "a2acp-D13")
def test_personal_data_and_secrets_between_two_are_always_encrypted() -> None:
    pii = msgspec.structs.replace(CAPABILITY, pii=True)
    assert contract(capability=pii, kid="k").security.encryption == "aes256"
    secret = contract(mode="end-to-end", kid="k").security
    assert (secret.encryption, secret.validated) == ("aes256", False)
    with pytest.raises(LocalProtocolError, match="needs a key"):
        contract(capability=pii)


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
def test_who_has_no_contract_is_told_so_and_no_more() -> None:
    bare = judge(None, read(tree(payload={})), START)
    unknown = judge(None, read(tree()), START)
    stranger = {"agent_id": "eve", "domain": "lab", "version": "1.0.0"}
    foreign = judge(held(), read(tree(source_agent=stranger)), START)
    assert bare is not None
    assert "shake hands" in bare.message
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
def test_contracts_expire_are_renewed_and_end() -> None:
    one = held()
    assert (one.at(after(86_399)), one.at(after(86_400))) == (Standing.ACTIVE, Standing.EXPIRED)
    refusal = judge(one, read(tree()), after(86_400))
    assert refusal is not None
    assert refusal.details["standing"] == "expired"
    old, new = renew(one, "c-2", after(10), by="ada")
    assert (new.contract.contract_id, new.contract.collaboration_id) == ("c-2", "l-1")
    assert (new.contract.expires_at, new.at(after(86_400))) == (after(86_410), Standing.ACTIVE)
    assert (old.standing, old.honoured(after(69)), old.honoured(after(70))) == (Standing.SUPERSEDED, True, False)
    ended = change(one, Change.TERMINATE, after(5), by="bob", reason="done")
    assert (ended.standing, ended.by, ended.honoured(after(5))) == (Standing.TERMINATED, "bob", False)
    for over, now in ((ended, after(6)), (old, after(20)), (one, after(86_400))):
        with pytest.raises(LocalProtocolError, match="shake hands"):
            change(over, Change.RENEW, now, by="ada")
    assert [state for state, row in STANDINGS.rows.items() if row] == [Standing.ACTIVE]


@pytest.mark.requirement("A2-CTR-6", "a2acp-D8")
def test_payloads_of_requests_and_responses_are_held_to_the_contract() -> None:
    library, terms = Library(), contract()
    asked, answered = read(tree()), read(tree("response"))
    assert asked.payload is not None
    assert conform(terms, asked, asked.payload, library) is None
    refusal = conform(terms, asked, {"rows": "canary"}, library)
    assert refusal is not None
    assert (refusal.code, refusal.details["faults"][0]["pointer"]) == (Code.CONTRACT_VIOLATION, "/rows")
    assert "canary" not in repr(refusal)
    assert conform(terms, answered, {"dataset_id": "d", "more": 1}, library) is None
    assert conform(terms, answered, {}, library) is not None
    assert conform(terms, read(tree("event")), {"anything": 1}, library) is None
    assert conform(contract(mode="end-to-end", kid="k"), asked, {}, library) is None
    assert len(library) == 2


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
def test_a_key_is_rotated_and_the_old_one_opens_what_was_on_its_way() -> None:
    turned = rotate(private(), "k2", after(10))
    assert (turned.contract.kid, turned.keys(after(69)), turned.keys(after(70))) == ("k2", {"k", "k2"}, {"k2"})
    for bad, kid, now in ((private(), "k", START), (held(), "k2", START), (private(), "k2", after(86_400))):
        with pytest.raises(LocalProtocolError):
            rotate(bad, kid, now)


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
    hop = codec.decode(codec.reissue(msgspec.to_builtins(message), "hop"))
    assert sealing.associated_data(hop, "k") == bound  # the broker's own changes leave it as it is


@pytest.mark.requirement("A2-SEC-3", "a2acp-D12")
def test_a_key_belongs_to_one_collaboration_and_both_ends_derive_it_alike() -> None:
    other = "D" * 43
    assert sealing.key_salt(KEY, other) == sealing.key_salt(other, KEY)
    infos = {sealing.key_info(*said) for said in (("l", "k", "a", "b"), ("l2", "k", "a", "b"), ("l", "k2", "a", "b"),
                                                  ("l", "k", "b", "a"), ("l", "ka", "", "b"))}  # fmt: skip
    assert len(infos | {sealing.wrap_data("l", "k", "a"), sealing.wrap_data("l", "k", "b")}) == 7


# -- domains --


@pytest.mark.requirement("a2acp-D19")
def test_another_domain_needs_a_policy_that_allows_it() -> None:
    rule = DomainPolicy(source_domain="lab", target_domain="ward", intents=("provision",), encrypt=True)
    found = policy([rule], "lab", "ward", "provision")
    assert isinstance(found, DomainPolicy)
    assert found.encrypt
    for source, target, intent in (("ward", "lab", "provision"), ("lab", "ward", "delete"), ("lab", "x", "provision")):
        refusal = policy([rule], source, target, intent)
        assert isinstance(refusal, Refusal)
        assert refusal.code is Code.SECURITY_POLICY_VIOLATION
    assert isinstance(policy([], "lab", "lab", "x"), DomainPolicy)
    anyone = DomainPolicy(source_domain="*", target_domain="*")
    never = DomainPolicy(source_domain="lab", target_domain="*", allow=False)
    assert isinstance(policy([anyone], "lab", "ward", "x"), DomainPolicy)
    assert isinstance(policy([anyone, never], "lab", "ward", "x"), Refusal)
    assert isinstance(policy([never], "lab", "lab", "x"), Refusal)


def test_a_capability_is_whole_with_nothing_but_its_intent_and_its_schema() -> None:
    least = msgspec.convert({"intent": "x", "input_schema": True}, Capability)
    assert (least.version, least.pii, least.timeout_seconds, least.output_schema) == ("1.0.0", False, 30, True)
    assert agree(least, ADA, BOB, contract_id="c", collaboration_id="l", now=START).output_schema is True
