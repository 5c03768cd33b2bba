"""What keeps a2acp's agents safe from each other and from the wire, shown by a real hub: keys, personal data, limits,
TLS, and the sandbox; and the document's two flows, played.
"""

from __future__ import annotations

import json
import socket
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from tests.conformance.a2acp.plain import BROKER, PROVISION, WANTED, Bond, Pair, Plain, error_of
from tests.support.children import program, worker
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until
from tests.support.kids import Kids
from tests.support.sandboxes import backend_of

from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.a2acp import errors
from dragoman.protocols.a2acp.errors import TABLE, Code
from dragoman.sandbox.levels import all_levels
from dragoman.sandbox.model import Level

Json = dict[str, Any]
EXAMPLES = Path(__file__).parents[3] / "examples"
CANARY = "canary-7d20e1"
RECORD: Json = {
    "intent": "read_record",
    "input_schema": {"type": "object", "properties": {"patient": {"type": "string"}}, "required": ["patient"]},
    "output_schema": {"type": "object", "required": ["ward"]},
    "pii": True,
}
RETRIED = {"TIMEOUT", "INTERNAL_ERROR", "RATE_LIMIT_EXCEEDED"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_RULES__IDLE_SECONDS="600") as hub:
        yield hub


@pytest.fixture
def pair(hub: HubProcess) -> tuple[Plain, Plain]:
    name = uuid.uuid4().hex[:6]
    bob = Plain(hub, f"bob-{name}").serves(PROVISION, RECORD)
    return Plain(hub, f"ada-{name}"), bob


def audited(hub: HubProcess, agent: Plain) -> list[tuple[str, str]]:
    answer = hub.admin.get(f"/api/v1/audit?principal={agent.id}&limit=500")
    return [(one["action"], one["outcome"]) for one in answer.json["records"]]


# -- errors


@pytest.mark.requirement("A2-ERR-4", "A2-ERR-1", "A2-ERR-3")
@pytest.mark.parametrize("kind", list(Kind))
def test_every_fault_of_the_hub_is_one_of_the_eight(kind: Kind) -> None:
    refusal = errors.refusal_of(Fault(kind=kind, message="so it is"))
    told = refusal.payload("k")["error"]
    assert told["code"] in set(Code)
    assert (told["retry_after"] >= 1) == (told["code"] in RETRIED) == TABLE[Code(told["code"])].retry
    assert 400 <= errors.status_of(Fault(kind=kind, message="so it is")) < 600


# -- encryption


@pytest.mark.requirement("A2-SEC-3", "A2-SEC-4", "a2acp-D12")
@pytest.mark.parametrize("mode", ["broker", "end-to-end"])
def test_two_agents_exchange_what_the_wire_cannot_read(hub: HubProcess, pair: tuple[Plain, Plain], mode: str) -> None:
    ada, bob = pair
    ours, theirs = Pair(), Pair()
    ada.say(ada.initiate(bob, PROVISION["intent"], encrypt=True, mode=mode, public_key=ours.public_key))
    bob.accept(public_key=theirs.public_key)
    told = ada.hears("response", "initiate_handshake")["payload"]
    news = bob.hears("event", "accept_handshake")["payload"]
    bond = Bond(ada, bob, told["contract"], told["collaboration_id"], {}, (ours, theirs))
    assert bond.granted(told["key"], 0) == bond.granted(news["key"], 1)  # the same key, by two ways
    assert bond.terms["security"]["validated"] is (mode == "broker")
    with ada.sending(bond.request()) as waiting:
        work = bob.hears("request", PROVISION["intent"])
        assert "test_scenario_id" not in work["payload"]
        assert bond.content(work) == WANTED
        bob.say(bond.response(work, {"dataset_id": "sealed-answer"}))
        answer = waiting.result(10)
    assert answer.status == 200, answer
    assert b"sealed-answer" not in answer.body
    assert bond.content(answer.json) == {"dataset_id": "sealed-answer"}
    told = ada.send(bond.request({"nothing": "fits"}), later=True)
    if mode == "broker":  # the hub reads along, and holds it to the schema
        assert error_of(told)["code"] == "CONTRACT_VIOLATION"
    else:
        assert told.status == 202  # only the target can tell


@pytest.mark.requirement("a2acp-D12", "a2acp-D14")
@pytest.mark.parametrize("by", ["source", "target"])
def test_either_side_may_rotate_the_key(pair: tuple[Plain, Plain], by: str) -> None:
    ada, bob = pair
    bond = ada.shake(bob, encrypt=True)
    old = bond.kid
    on_its_way = bond.request()
    who, other, side = (ada, bob, 0) if by == "source" else (bob, ada, 1)
    mine = bond.pairs[side]
    assert mine is not None
    wish = {"collaboration_id": bond.collaboration, "public_key": mine.public_key}
    answer = who.send(who.message("request", BROKER, "rotate_key", wish))
    assert answer.status == 200, answer
    one = bond.granted(answer.json["payload"]["key"], side)
    two = bond.granted(other.hears("event", "rotate_key")["payload"]["key"], 1 - side)
    assert one == two
    assert bond.kid != old
    ada.say(on_its_way)  # sealed before, taken after
    assert bond.content(bob.hears("request")) == WANTED
    work = bond.ask()
    assert work["payload"]["kid"] == bond.kid
    bob.say(bond.response(work, {"dataset_id": "d"}))
    assert ada.hears("response", PROVISION["intent"])["payload"]["kid"] == bond.kid


# -- personal data


@pytest.mark.requirement("A2-PII-1", "A2-PII-2", "A2-PII-3", "a2acp-D13")
def test_personal_data_is_encrypted_audited_and_nowhere_to_be_seen(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    ada, bob = pair
    told = ada.refused(ada.initiate(bob, "read_record"))  # without a key there is no contract about such things
    assert told["code"] == "SECURITY_POLICY_VIOLATION"
    bond = ada.shake(bob, "read_record", sealed=True)
    assert (bond.terms["security"]["pii"], bond.terms["security"]["encryption"]) == (True, "aes256")
    told = ada.refused(bond.request({"patient": CANARY}, clear=True))
    assert told["code"] == "SECURITY_POLICY_VIOLATION"
    assert CANARY not in json.dumps(told)
    assert ("pii.refused", "refused") in audited(hub, ada)
    work = bond.ask({"patient": CANARY})
    assert bond.content(work) == {"patient": CANARY}
    assert CANARY not in json.dumps(work)
    bob.say(bond.response(work, {"ward": CANARY}))
    assert bond.content(ada.hears("response", "read_record")) == {"ward": CANARY}
    until(lambda: "pii.request" in {what for what, _ in audited(hub, ada)}, "it is in the audit record")
    id = work["task"]["id"]
    for path in (f"/tasks/{id}", f"/tasks/{id}?history=1", "/tasks", "/deadletters", "/audit?limit=500", "/contracts"):
        answer = hub.admin.get(f"/api/v1{path}")
        assert answer.status == 200, path
        assert CANARY.encode() not in answer.body, path
    assert CANARY not in dragoman("task", "show", id, hub=hub).out
    assert CANARY not in hub.log.read_text()
    for file in (one for one in hub.data.rglob("*") if one.is_file()):
        assert CANARY.encode() not in file.read_bytes(), file


# -- limits


@pytest.mark.requirement("A2-LIM-4", "a2acp-D16", "A2-ERR-3")
@pytest.mark.parametrize("scope", ["agent", "collaboration", "broker"])
def test_everybody_is_held_to_the_limits(tmp_path: Path, scope: str) -> None:
    limits = {f"DRAGOMAN_A2ACP__MESSAGES_PER_{one.upper()}": "12" if one == scope else "1000"
              for one in ("agent", "collaboration", "broker")}  # fmt: skip
    with running(tmp_path, **limits, DRAGOMAN_RULES__IDLE_SECONDS="600") as hub:
        bob = Plain(hub, "bob").serves(PROVISION)
        ada, cid = Plain(hub, "ada"), Plain(hub, "cid")
        bond = ada.shake(bob)
        answers = []
        while not answers or (answers[-1].status == 202 and len(answers) < 13):
            answers.append(ada.send(bond.request(), later=True))
        last = answers[-1]
        told = error_of(last)
        assert (last.status, told["code"]) == (429, "RATE_LIMIT_EXCEEDED")
        assert (told["details"]["scope"], told["details"]["limit"]) == (scope, 12)
        assert 1 <= told["retry_after"] <= 61
        assert int(last.headers["retry-after"]) == told["retry_after"]
        shaken = [one.send(one.initiate("bob", "nothing such")).status for one in (ada, cid)]
        assert shaken == {"agent": [429, 404], "collaboration": [404, 404], "broker": [429, 429]}[scope]
        with ada.link() as link:  # another link is the same agent
            link.say(bond.request())
            assert link.hears("error")["payload"]["error"]["code"] == "RATE_LIMIT_EXCEEDED"
        assert len(hub.tasks()) == len(answers) - 1  # nothing of what was refused went on


@pytest.mark.requirement("A2-PII-1", "A2-PII-3", "a2acp-D13")
@pytest.mark.parametrize("disguise", ["nothing sealed", "in the ciphertext's place", "in the ciphertext", "beside it"])
def test_personal_data_in_clear_under_a_label_of_encryption_is_refused_and_audited(
    hub: HubProcess, pair: tuple[Plain, Plain], disguise: str
) -> None:
    ada, bob = pair
    bond = ada.shake(bob, "read_record", sealed=True)
    sealed = bond.request({"patient": CANARY})
    around = {name: sealed["payload"][name] for name in ("contract_id", "correlation_id")}
    payload = {
        "nothing sealed": {**around, "patient": CANARY},
        "in the ciphertext's place": {**sealed["payload"], "ciphertext": f"patient {CANARY}"},
        "in the ciphertext": {**sealed["payload"], "ciphertext": f"patient-{CANARY}-{CANARY}-{CANARY}"},
        "beside it": {**sealed["payload"], "patient": CANARY},
    }[disguise]
    answer = ada.send({**sealed, "payload": payload}, later=True)
    told = error_of(answer)
    assert (answer.status, told["code"], told["retry_after"]) == (403, "SECURITY_POLICY_VIOLATION", 0), told
    assert CANARY not in answer.body.decode()
    until(lambda: audited(hub, ada).count(("pii.refused", "refused")) == 1, "the attempt is in the audit record")
    assert bob.hear() == []
    without = {name: value for name, value in payload.items() if name != "contract_id"}
    told = ada.refused(ada.message("request", bob, "read_record", without, security={**sealed["security"]}))
    wanted = "CONTRACT_VIOLATION" if disguise == "in the ciphertext" else "SECURITY_POLICY_VIOLATION"
    assert told["code"] == wanted, told


@pytest.mark.requirement("A2-LIM-2", "a2acp-D16")
def test_an_agent_at_its_limit_may_end_a_collaboration_and_waits_a_minute_at_most(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="5") as hub:
        ada, bob = Plain(hub, "ada"), Plain(hub, "bob").serves(PROVISION)
        bond = ada.shake(bob)
        asked = [ada.send(ada.message("request", BROKER, "discover_capabilities", {})) for _ in range(6)]
        assert (asked[-1].status, error_of(asked[-1])["code"]) == (429, "RATE_LIMIT_EXCEEDED")
        assert 1 <= error_of(asked[-1])["retry_after"] <= 60
        assert asked[-1].headers["retry-after"] == str(error_of(asked[-1])["retry_after"])
        over = ada.send(
            ada.message("request", BROKER, "terminate_collaboration", {"collaboration_id": bond.collaboration})
        )
        assert over.status == 200, over
        again = ada.send(
            ada.message("request", BROKER, "terminate_collaboration", {"collaboration_id": bond.collaboration})
        )
        assert error_of(again)["code"] != "RATE_LIMIT_EXCEEDED"


@pytest.mark.requirement("A2-LIM-4", "a2acp-D16")
def test_questions_count_like_everything_else(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="5") as hub:
        ada = Plain(hub, "ada")
        asked = [ada.send(ada.message("request", BROKER, "discover_capabilities", {})).status for _ in range(6)]
        assert asked == [200] * 5 + [429]


# -- TLS


@pytest.mark.requirement("A2-SEC-1", "a2acp-D18")
def test_the_transport_is_tls_1_3_or_nothing(tmp_path: Path) -> None:
    ca = trustme.CA()
    made = ca.issue_cert("localhost", "127.0.0.1")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.write_bytes(b"".join(one.bytes() for one in made.cert_chain_pems))
    key.touch(0o600)
    key.write_bytes(made.private_key_pem.bytes())
    with running(tmp_path / "hub", DRAGOMAN_TLS__CERTIFICATE=str(certificate), DRAGOMAN_TLS__KEY=str(key)) as hub:
        assert hub.url.startswith("https://")
        port = urlsplit(hub.url).port or 0

        def shaken(**how: Any) -> str | None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            ca.configure_trust(context)
            for name, value in how.items():
                setattr(context, name, value)
            with (
                socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as link,
            ):
                link.sendall(b"POST /a2acp/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
                assert link.recv(12) == b"HTTP/1.1 400"
                return link.version()

        assert shaken() == "TLSv1.3"
        with pytest.raises(OSError):
            shaken(maximum_version=ssl.TLSVersion.TLSv1_2)


@pytest.mark.requirement("a2acp-D18")
def test_plain_http_is_for_loopback_only(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path, DRAGOMAN_SERVER__HOST="0.0.0.0")
    hub.launch()
    assert hub.died() != 0
    assert "allow_plain" in hub.log.read_text()


# -- the sandbox


def level() -> Level:
    backends = all_levels()
    report = backends.report(backend_of(backends, Level.BUBBLEWRAP))
    if not report.passed:
        pytest.skip(f"{Level.BUBBLEWRAP}: {report.why_not}; {report.remedy}")
    return Level.BUBBLEWRAP


@pytest.mark.requirement("A2-SBX-1", "A2-SBX-2", "A2-TIM-3", "a2acp-D17")
def test_an_untrusted_target_works_in_a_sandbox_and_the_contract_says_in_which(hub: HubProcess) -> None:
    strength = level()
    Kids(hub).run("walled", *worker, untrusted=True)
    until(lambda: Kids(hub).look("walled")["status"] == "idle", "it runs")
    ada = Plain(hub, "walled-asker", "default")
    answer = ada.send(ada.initiate("walled", "work"))
    assert answer.status == 200, answer
    contract = answer.json["payload"]["contract"]
    told = Kids(hub).look("walled")["sandbox"]
    assert told is not None
    assert (contract["security"]["sandbox"], contract["timeout_seconds"]) == (told, 60)
    levels = all_levels()
    assert (told == "hyperlight") <= levels.report(backend_of(levels, Level.HYPERLIGHT)).passed
    assert told == strength or told in ("hyperlight", "wasm")
    payload = {"a": 1, "contract_id": contract["contract_id"]}
    party = contract["target_agent"]
    said = ada.send(ada.message("request", party, "work", payload))
    assert said.status == 200, said
    assert said.json["payload"]["echo"] == {"a": 1}


@pytest.mark.requirement("A2-SBX-3", "A2-SBX-2")
def test_an_untrusted_agent_has_neither_files_nor_network(hub: HubProcess) -> None:
    level()
    kids = Kids(hub)
    port = urlsplit(hub.url).port
    kids.run(
        "prying",
        *program(
            "import socket",
            "def attempt(what, deed):",
            "    try: print('got', what, deed(), flush=True)",
            "    except BaseException as error: print('refused', what, flush=True)",
            "attempt('passwd', lambda: open('/etc/passwd').read(1))",
            f"attempt('data', lambda: open({str(hub.database)!r}, 'rb').read(1))",
            f"attempt('hub', lambda: socket.create_connection(('127.0.0.1', {port}), 2))",
        ),
        untrusted=True,
    )
    until(lambda: kids.state("prying") in ("stopped", "crashed"), "it ends", seconds=60)
    assert kids.printed("prying") == ["refused passwd", "refused data", "refused hub"]


@pytest.mark.requirement("a2acp-D17")
def test_below_the_levels_policy_an_untrusted_agent_is_refused(tmp_path: Path) -> None:
    backends = all_levels()
    if backends.report(backend_of(backends, Level.HYPERLIGHT)).passed:
        pytest.skip("this machine has the highest level there is")
    with running(tmp_path, DRAGOMAN_SANDBOX__MINIMUM="hyperlight") as hub:
        kids = Kids(hub)
        kids.run("loose", *worker, untrusted=True)
        until(lambda: kids.state("loose") == "crashed", "it is refused")
        assert (kids.look("loose")["sandbox"], kids.child("loose")["pid"]) == (None, None)
        assert "hyperlight" in kids.child("loose")["last_end"]


# -- the flows


@pytest.mark.requirement("A2-FLW-2", "A2-FLW-4")
@pytest.mark.parametrize("name", ["agent-collaboration-flow", "error-handling-flow"])
def test_the_documents_flows_play_against_a_hub(tmp_path: Path, name: str) -> None:
    with running(tmp_path) as hub:
        said = dragoman("play", str(EXAMPLES / f"{name}.json"), "-o", "json", hub=hub)
        assert said.code == 0, said
        assert said.json["ok"] is True
