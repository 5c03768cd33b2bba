"""The SDK over a2acp and a real hub: contracts, personal data, rotation, restarts; over both transports, and with
agents of other protocols."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import (
    Agent,
    AuthFailed,
    CapabilityNotFound,
    Client,
    ContractViolation,
    HandshakeRequest,
    HelpRequest,
    NotAllowed,
    RateLimitExceeded,
    Reject,
    SchemaMismatch,
    SecurityPolicyViolation,
    SyncClient,
    Task,
    TaskCancelled,
    TaskFailed,
)
from tests.e2e import at_work
from tests.e2e.at_work import soon
from tests.support.hubproc import HubProcess, running, until
from tests.support.relay import Relay


class Record(msgspec.Struct):
    patient: str
    ward: int = 1


def url(hub: HubProcess, transport: str = "ws") -> str:
    return at_work.url(hub, f"a2acp+{transport}")


def token(hub: HubProcess, id: str, domain: str, *capabilities: str, protocol: str = "a2acp") -> str:
    return at_work.token(hub, id, protocol, domain=domain, capabilities=list(capabilities))


def serving(hub: HubProcess, *agents: Agent, at: str | None = None) -> AbstractAsyncContextManager[object]:
    return at_work.serving(hub, *agents, at=at or url(hub))


def allow(hub: HubProcess, source: str, target: str) -> None:
    """What `dragoman policy allow` does: an entry of the shared policy."""
    with SyncClient(hub.url, token=hub.ready["admin_token"]) as people:
        policy = people.state.get("POLICY", "policy")
        pairs = [*policy.value.get("domains", []), {"source": source, "target": target}]
        people.state.update("POLICY", policy.id, {"domains": pairs}, version=policy.version)


@pytest.fixture
def hub(tmp_path: Path) -> Any:
    with running(tmp_path) as hub:
        allow(hub, "research", "clinic")
        yield hub


def records(hub: HubProcess, state_dir: Path | None = None) -> Agent:
    agent = Agent(
        "records", domain="clinic", version="2.1.0", token=token(hub, "records", "clinic"), state_dir=state_dir
    )

    @agent.task("read_record", pii=True, requires=("read:records",), timeout=60)
    async def read_record(task: Task, patient: str) -> Record:
        """Read one record."""
        if patient == "nobody":
            raise LookupError(f"no {patient} here")
        await task.progress(50, "looking", output="found the folder\n")
        return Record(patient, ward=7)

    @agent.task("count", timeout=60)
    async def count(ward: int) -> int:
        return ward * 10

    @agent.task("busy")
    async def busy() -> None:
        raise RateLimitExceeded("come back", retry_after=1)

    return agent


def lab(hub: HubProcess, transport: str = "ws", **more: Any) -> Client:
    given = token(hub, "lab", "research", "read:records")
    return Client(url(hub, transport), id="lab", token=given, **more)


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_two_domains_work_together_under_contracts(hub: HubProcess, transport: str) -> None:
    agent = records(hub)
    async with serving(hub, agent, at=url(hub, transport)), lab(hub, transport) as client:
        found = await soon(client.discover(intent="read_record", domain="clinic"))
        assert [(one.agent.agent_id, one.agent.version, one.capability.pii) for one in found] == [
            ("records", "2.1.0", True)
        ]
        contract = await soon(client.contract("read_record", agent="records"))
        assert (contract.security.encryption, contract.security.mode) == ("aes256", "broker")
        assert isinstance(contract.input_schema, dict)
        assert contract.input_schema["required"] == ["patient"]
        result = await soon(client.call("read_record", {"patient": "Jane Roe"}, agent="records"))
        assert result == {"patient": "Jane Roe", "ward": 7}
        events = [event async for event in client.stream("records", "read_record", patient="Jane Roe")]
        assert await soon(client.call("count", {"ward": 3})) == 30
        for _ in range(3):  # several at once
            assert await soon(asyncio.gather(*(client.call("count", {"ward": n}) for n in range(5)))) == [
                0, 10, 20, 30, 40,
            ]  # fmt: skip
    assert [(event.kind, event.data.get("output")) for event in events] == [
        ("progress", "found the folder\n"),
        ("completed", None),
    ]


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_a_person_is_asked_under_a_contract_that_seals(hub: HubProcess, transport: str) -> None:
    agent = records(hub)

    @agent.task("release", pii=True, timeout=60)
    async def release(task: Task, patient: str) -> str:
        first = await task.ask(f"Release {patient}?", options=["yes", "no"], timeout=300, default="no")
        return f"{first}, {await task.ask('By whom?')}"

    def answer(question: str, said: str) -> None:
        [asked] = until(lambda: hub.admin.get("/api/v1/questions?status=open").json["questions"], question)
        assert asked["question"] == question
        assert hub.admin.post(f"/api/v1/questions/{asked['id']}/answer", {"answer": said}).status == 200

    async with serving(hub, agent, at=url(hub, transport)), lab(hub, transport) as client:
        calling = asyncio.ensure_future(client.call("release", {"patient": "Jane"}, agent="records"))
        await asyncio.to_thread(answer, "Release Jane?", "yes")
        await asyncio.to_thread(answer, "By whom?", "Dr Roe")
        assert await soon(calling) == "yes, Dr Roe"
        with pytest.raises(TaskFailed):  # nobody but the two can read it
            await soon(client.call("release", {"patient": "Jane"}, agent="records", mode="end-to-end"))


async def test_end_to_end_and_rotation(hub: HubProcess) -> None:
    async with serving(hub, records(hub)), lab(hub) as client:
        private = {"agent": "records", "mode": "end-to-end"}
        assert (await soon(client.call("read_record", {"patient": "A"}, **private)))["patient"] == "A"
        contract = await soon(client.contract("read_record", agent="records", mode="end-to-end"))
        assert contract.security.validated is False
        await soon(client.rotate(contract))
        assert (await soon(client.call("read_record", {"patient": "B"}, **private)))["patient"] == "B"
        brokered = await soon(client.contract("read_record", agent="records"))
        await soon(client.rotate(brokered))
        assert (await soon(client.call("read_record", {"patient": "C"}, agent="records")))["patient"] == "C"
        await soon(client.terminate(brokered, "done"))
        assert (await soon(client.call("read_record", {"patient": "D"}, agent="records")))["patient"] == "D"
        anew = await soon(client.contract("read_record", agent="records"))
    assert anew.collaboration_id != brokered.collaboration_id


async def test_what_goes_wrong_has_its_code(hub: HubProcess) -> None:
    agent = records(hub)

    @agent.on_handshake
    def decide(request: HandshakeRequest) -> bool | Reject:
        return Reject("not from there") if request.domain == "clinic" else True

    inside = Client(url(hub), id="ward", token=token(hub, "ward", "clinic"))
    stranger = Client(url(hub), id="elsewhere", token=token(hub, "elsewhere", "harbour"))
    async with serving(hub, agent), lab(hub) as client, inside as ward, stranger as other:
        with pytest.raises(SchemaMismatch, match="input schema") as unfit:
            await soon(client.call("count", {"ward": "three"}))
        with pytest.raises(TaskFailed) as failed:
            await soon(client.call("read_record", {"patient": "nobody"}, agent="records"))
        with pytest.raises(RateLimitExceeded) as busy:
            await soon(client.call("busy", {}, retries=1))
        with pytest.raises(CapabilityNotFound):
            await soon(client.call("fly", {}))
        with pytest.raises(ContractViolation, match="not from there"):
            await soon(ward.call("count", {"ward": 3}))
        with pytest.raises(AuthFailed):
            await soon(ward.call("read_record", {"patient": "A"}))
        with pytest.raises(SecurityPolicyViolation):
            await soon(other.call("count", {"ward": 3}))
    assert unfit.value.code == "CONTRACT_VIOLATION"
    assert "three" not in str(unfit.value.details)
    assert "nobody" not in str(failed.value)
    assert busy.value.retry_after == 1


async def test_an_answer_that_breaks_the_contract_is_the_agents_fault(hub: HubProcess) -> None:
    agent = records(hub)

    @agent.task("lie", timeout=60)
    async def lie() -> Record:
        return {"patient": 3}  # type: ignore[return-value]

    async with serving(hub, agent), lab(hub) as client:
        with pytest.raises(ContractViolation, match="output schema"):
            await soon(client.call("lie", {}))


async def test_an_agent_restarts_without_its_keys(hub: HubProcess) -> None:
    first = records(hub)
    again = Agent("records", token=first._token, domain="clinic", version="2.1.0")

    @again.task("read_record", pii=True, requires=("read:records",), timeout=60)
    async def read_record(patient: str) -> Record:
        return Record(patient, ward=8)

    async with lab(hub) as client:
        async with serving(hub, first):
            assert (await soon(client.call("read_record", {"patient": "A"})))["ward"] == 7
        async with serving(hub, again):
            assert (await soon(client.call("read_record", {"patient": "A"})))["ward"] == 8


async def test_a_wrong_secret_is_reported_at_once(hub: HubProcess) -> None:
    with pytest.raises(NotAllowed):
        async with Client(url(hub), id="lab", token="0" * 32):
            pass


async def test_a_cancel_reaches_the_handler(hub: HubProcess) -> None:
    agent, begun, ended = records(hub), asyncio.Event(), asyncio.Event()

    @agent.task("wait", timeout=60)
    async def wait() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with serving(hub, agent), lab(hub) as client:
        task_id = await soon(client.submit("records", "wait"))
        await soon(begun.wait())
        await soon(client.cancel(task_id, "enough"))
        with pytest.raises(TaskCancelled):
            await soon(client.result(task_id))
        await soon(ended.wait())


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_the_hub_may_be_killed_while_work_is_under_way(hub: HubProcess, tmp_path: Path, transport: str) -> None:
    agent, begun, gate = records(hub, tmp_path / "state"), asyncio.Event(), asyncio.Event()
    runs = 0

    @agent.task("wait", pii=True, timeout=60)
    async def wait(name: str) -> dict[str, str]:
        nonlocal runs
        runs += 1
        begun.set()
        await gate.wait()
        return {"name": name}

    given = token(hub, "lab", "research")
    async with Relay(hub.url.removeprefix("http://")) as relay:
        at = f"a2acp+{transport}://{relay.address}"
        async with serving(hub, agent, at=at), Client(at, id="lab", token=given) as client:
            calling = asyncio.ensure_future(client.call("wait", {"name": "Jane"}))
            await soon(begun.wait())
            await asyncio.to_thread(hub.kill)
            gate.set()
            await asyncio.to_thread(hub.start)
            relay.target = hub.url.removeprefix("http://")
            assert await soon(calling) == {"name": "Jane"}
    assert runs == 1


async def test_connections_break_and_nothing_is_lost(hub: HubProcess) -> None:
    agent, given = records(hub), token(hub, "lab", "research", "read:records")
    async with Relay(hub.url.removeprefix("http://")) as relay:
        at = f"a2acp+ws://{relay.address}"
        async with serving(hub, agent, at=at), Client(at, id="lab", token=given) as client:
            for patient in ("A", "B", "C"):
                calling = asyncio.ensure_future(client.call("read_record", {"patient": patient}, agent="records"))
                await asyncio.sleep(0)
                relay.cut()
                assert (await soon(calling))["patient"] == patient


async def test_other_protocols_are_called_and_call(hub: HubProcess) -> None:
    agent = records(hub)
    worker = Agent("shell", token=token(hub, "shell", "clinic", protocol="chiffon"))
    traces: list[str] = []

    @worker.on("list_files")
    async def list_files(task: Task, path: str) -> dict[str, Any]:
        traces.append(task.trace_id.replace("-", ""))
        return {"files": [f"{path}/a"]}

    @agent.task("ask_shell")
    async def ask_shell(task: Task, path: str) -> dict[str, Any]:
        traces.append(task.trace_id)
        found: dict[str, Any] = await agent.client.call("list_files", {"path": path}, agent="shell")
        return found

    chiffon = hub.url.replace("http://", "chiffon+ws://")
    people = Client(hub.url, token=hub.ready["admin_token"])
    async with serving(hub, worker, at=chiffon), serving(hub, agent), lab(hub) as client, people as admin:
        assert await soon(client.call("ask_shell", {"path": "/tmp"})) == {"files": ["/tmp/a"]}
        assert await soon(admin.call("records", "count", ward=4)) == 40
    assert len(set(traces)) == 1


def test_without_an_event_loop(hub: HubProcess) -> None:
    agent = records(hub)

    async def call() -> None:
        async with serving(hub, agent):
            await asyncio.to_thread(plainly)

    def plainly() -> None:
        given = token(hub, "lab", "research", "read:records")
        with SyncClient(url(hub), id="lab", token=given) as client:
            assert client.discover("count")[0].agent.agent_id == "records"
            assert client.call("count", {"ward": 2}, agent="records") == 20
            assert client.contract("read_record").security.pii

    asyncio.run(call())


@pytest.mark.parametrize("protocol", ["a2acp", "chiffon", "forge", "coven"])
async def test_agents_of_every_protocol_help(hub: HubProcess, protocol: str) -> None:
    helper = Agent("helper", token=token(hub, "helper", "clinic", protocol=protocol))
    asker = Agent("asker", token=token(hub, "asker", "clinic", protocol="agentmsg"))

    @helper.on_help("CODE_REVIEW")
    async def advise(request: HelpRequest) -> str:
        return f"{request.help_type}: {request.description} {request.context['attempted_solutions']}"

    @asker.on("fix")
    async def fix(task: Task) -> str:
        advice = await task.help("is it right?", help_type="CODE_REVIEW", attempted=["a"], deadline=60)
        return f"{advice.responder}: {advice.content}"

    schemes = {"coven": f"coven://{hub.ready['grpc']}", "a2acp": url(hub)}
    at = schemes.get(protocol) or hub.url.replace("http://", f"{protocol}+ws://")
    people = Client(hub.url, token=hub.ready["admin_token"])
    agentmsg = hub.url.replace("http://", "agentmsg+ws://")
    async with serving(hub, helper, at=at), serving(hub, asker, at=agentmsg), people as admin:
        assert await soon(admin.call("asker", "fix")) == "helper: CODE_REVIEW: is it right? ['a']"
