"""A2acp in the SDK, against a broker in memory: agents and clients come to terms, and work under them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sdk.a2acp.harness import MemoryBroker, soon
from tests.unit.sdk.harness import FakeRuntime, settle

from dragoman import Agent, HandshakeRequest, NotSupported, Reject, Task, TaskCancelled, TaskFailed
from dragoman.protocols.a2acp.contracts import DomainPolicy
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import MessageType
from dragoman.sdk.failures import (
    AuthFailed,
    CapabilityNotFound,
    ContractViolation,
    RateLimitExceeded,
    SchemaMismatch,
    SecurityPolicyViolation,
    TimedOut,
)


@dataclass
class Dataset:
    id: str
    records: int


@pytest.fixture
def broker(runtime: FakeRuntime) -> MemoryBroker:
    made = MemoryBroker(runtime)
    made.let_in("datasets", "clinic", allowed=())
    made.let_in("tester", "lab", allowed=("read:datasets",))
    made.policies.append(DomainPolicy(source_domain="lab", target_domain="clinic"))
    return made


@pytest.fixture
def datasets(runtime: FakeRuntime) -> Agent:
    agent = Agent("datasets", runtime=runtime)

    @agent.task("provision", requires=("read:datasets",), timeout=30)
    async def provision(task: Task, kind: str, records: int = 1) -> Dataset:
        """Make a dataset."""
        await task.progress(50, "half", output="one\n")
        return Dataset(f"{kind}-1", records)

    @agent.task("patient", pii=True)
    async def patient(name: str) -> dict[str, str]:
        if name == "nobody":
            raise LookupError(f"{name} is not there")
        return {"name": name, "ward": "3"}

    @agent.task("count")
    async def count(of: list[int]) -> int:
        return len(of)

    @agent.task("busy")
    async def busy() -> None:
        raise RateLimitExceeded("one a minute", retry_after=30, details={"limit": 1})

    return agent


async def test_the_handlers_hints_are_the_schemas_of_the_registration(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets):
        (said,) = broker.registrations
    assert (said["agent_id"], said["domain"], said["version"]) == ("datasets", "clinic", "1.0.0")
    first, second, third, fourth = said["capabilities"]
    assert first["intent"] == "provision"
    assert first["required_capabilities"] == ["read:datasets"]
    assert first["input_schema"]["required"] == ["kind"]
    assert first["output_schema"]["properties"] == {"id": {"type": "string"}, "records": {"type": "integer"}}
    assert first["description"] == "Make a dataset."
    assert second["pii"] is True
    assert third["output_schema"]["properties"] == {"result": {"type": "integer"}}
    assert fourth["output_schema"] == {"type": "object"}


async def test_a_call_finds_shakes_hands_once_and_works(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        first = await soon(hub.call("provision", {"kind": "a", "records": 3}, agent="datasets"))
        second = await soon(hub.call("datasets", "provision", kind="b"))
        third = await soon(hub.call("count", {"of": [1, 2]}))
    assert (first, second, third) == ({"id": "a-1", "records": 3}, {"id": "b-1", "records": 1}, 2)
    assert broker.count("initiate_handshake") == 2
    assert {(one.target_agent_id, one.requested_capabilities) for one in broker.tokens} == {
        ("protocol-broker-agent", ()),
        ("protocol-broker-agent", ("read:datasets",)),
        ("datasets", ("read:datasets",)),
        ("datasets", ()),
        ("tester", ()),
    }


async def test_progress_reaches_the_caller(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        events = [event async for event in hub.stream("datasets", "provision", kind="a")]
    assert [(event.kind, event.data.get("output"), event.agent) for event in events] == [
        ("progress", "one\n", "datasets"),
        ("completed", None, "datasets"),
    ]


async def test_personal_data_is_sealed_on_the_way_both_ways(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        found = await soon(hub.call("patient", {"name": "Jane Roe"}))
        contract = await soon(hub.contract("patient"))
    assert found == {"name": "Jane Roe", "ward": "3"}
    assert contract.security.encryption == "aes256"
    assert contract.security.pii
    under_contract = [one for one in broker.said if one.intent == "patient"]
    assert len(under_contract) == 2
    assert all(one.security.encryption == "aes256" for one in under_contract)
    assert all("Jane" not in str(one.payload) for one in under_contract)


async def test_end_to_end_the_broker_cannot_read(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        found = await soon(hub.call("patient", {"name": "Jane Roe"}, mode="end-to-end"))
        contract = await soon(hub.contract("patient", mode="end-to-end"))
        await soon(hub.rotate(contract))
        again = await soon(hub.call("patient", {"name": "Jane Roe"}, mode="end-to-end"))
    assert found == again == {"name": "Jane Roe", "ward": "3"}
    assert not contract.security.validated
    assert "Jane" not in str(broker.plain)


async def test_a_rotated_key_is_used_by_both(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        contract = await soon(hub.contract("patient"))
        await soon(hub.call("patient", {"name": "A"}))
        await soon(hub.rotate(contract))
        assert await soon(hub.call("patient", {"name": "B"})) == {"name": "B", "ward": "3"}
    kids = [(one.payload or {})["kid"] for one in broker.said if one.intent == "patient"]
    assert kids == ["kid-0", "kid-0", "rotated-1", "rotated-1"]


async def test_a_contract_is_renewed_before_it_runs_out(
    broker: MemoryBroker, datasets: Agent, runtime: FakeRuntime
) -> None:
    broker.lifetime = 3600.0
    async with broker.serving(datasets), broker.client("tester") as hub:
        first = await soon(hub.contract("patient"))
        await runtime.advance(3000)
        assert await soon(hub.contract("patient")) == first
        await runtime.advance(300)
        second = await soon(hub.contract("patient"))
        assert await soon(hub.call("patient", {"name": "B"})) == {"name": "B", "ward": "3"}
    assert second.contract_id != first.contract_id
    assert second.collaboration_id == first.collaboration_id


async def test_a_terminated_contract_is_agreed_on_again(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        first = await soon(hub.contract("count"))
        await soon(hub.terminate(first, "done"))
        assert await soon(hub.call("count", {"of": []})) == 0
        second = await soon(hub.contract("count"))
    assert second.collaboration_id != first.collaboration_id


async def test_a_handshake_may_be_refused(broker: MemoryBroker, datasets: Agent) -> None:
    asked: list[HandshakeRequest] = []

    @datasets.on_handshake
    async def decide(request: HandshakeRequest) -> bool | Reject:
        asked.append(request)
        return Reject("not today") if request.intent == "count" else True

    async with broker.serving(datasets), broker.client("tester") as hub:
        with pytest.raises(ContractViolation, match="not today") as refused:
            await soon(hub.call("count", {"of": []}))
        assert (await soon(hub.call("patient", {"name": "A"})))["name"] == "A"
    assert (refused.value.code, refused.value.retry_after) == ("CONTRACT_VIOLATION", 0)
    assert [(one.source, one.domain, one.intent) for one in asked] == [
        ("tester", "lab", "count"),
        ("tester", "lab", "patient"),
    ]


async def test_errors_are_typed(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        with pytest.raises(CapabilityNotFound):
            await soon(hub.call("fly", {}))
        with pytest.raises(ContractViolation) as unfit:
            await soon(hub.call("provision", {"kind": 3}))
        with pytest.raises(RateLimitExceeded) as busy:
            await soon(hub.call("busy", {}, retries=0))
        with pytest.raises(TaskFailed) as failed:
            await soon(hub.call("patient", {"name": "nobody"}))
        broker.policies.clear()
        with pytest.raises(SecurityPolicyViolation):
            await soon(hub.contract("count"))
    assert unfit.value.details["faults"][0]["pointer"] == "/kind"
    assert (busy.value.retry_after, busy.value.details, busy.value.by) == (30, {"limit": 1}, "datasets")
    assert "nobody" not in str(failed.value)  # errors travel in clear, and it was personal
    assert "LookupError" in str(failed.value)


async def test_the_auth_service_refuses_what_is_not_allowed(broker: MemoryBroker, datasets: Agent) -> None:
    broker.members["tester"].allowed = ()
    async with broker.serving(datasets), broker.client("tester") as hub:
        with pytest.raises(AuthFailed):
            await soon(hub.call("provision", {"kind": "a"}))


async def test_a_retryable_refusal_is_retried_at_the_time_it_names(
    broker: MemoryBroker, datasets: Agent, runtime: FakeRuntime
) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        await soon(hub.contract("count"))
        broker.refusals.append(Refusal(code=Code.RATE_LIMIT_EXCEEDED, message="slow", after=7, details={"kind": "x"}))
        calling = asyncio.ensure_future(hub.call("count", {"of": [1]}))
        await runtime.advance(6.5)
        assert not calling.done()
        await runtime.advance(1)
        assert await soon(calling) == 1
        broker.refusals += [Refusal(code=Code.TIMEOUT, message="late", details={"kind": "timeout"})] * 3
        calling = asyncio.ensure_future(hub.call("count", {"of": [1]}))
        await runtime.advance(10)
        with pytest.raises(TimedOut):
            await soon(calling)
        broker.refusals.append(Refusal(code=Code.SCHEMA_MISMATCH, message="no"))
        with pytest.raises(SchemaMismatch):
            await soon(hub.call("count", {"of": [1]}))


async def test_a_lost_answer_does_not_do_work_twice(
    broker: MemoryBroker, datasets: Agent, runtime: FakeRuntime
) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        await soon(hub.contract("count"))
        broker.lose = 1
        calling = asyncio.ensure_future(hub.call("count", {"of": [1, 2, 3]}))
        await runtime.advance(5)
        assert await soon(calling) == 3
    assert broker.count("count") == 1


async def test_a_result_survives_a_broken_connection_of_the_agent(
    broker: MemoryBroker, datasets: Agent, runtime: FakeRuntime
) -> None:
    gate = asyncio.Event()

    @datasets.task("slow")
    async def slow() -> str:
        await gate.wait()
        return "done"

    async with broker.serving(datasets), broker.client("tester") as hub:
        calling = asyncio.ensure_future(hub.call("slow", {}))
        await settle()
        broker.is_down = True
        broker.cut("datasets")
        await settle()
        gate.set()
        await settle()
        broker.is_down = False
        await runtime.advance(5)
        assert await soon(calling) == "done"


async def test_a_cancel_reaches_the_handler(broker: MemoryBroker, datasets: Agent) -> None:
    ended: list[str] = []

    @datasets.task("slow")
    async def slow(task: Task) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(task.type)
        return ""

    async with broker.serving(datasets), broker.client("tester") as hub:
        task_id = await soon(hub.submit("datasets", "slow"))
        await settle()
        await soon(hub.cancel(task_id, "enough"))
        with pytest.raises(TaskCancelled):
            await soon(hub.result(task_id))
        await settle()
    assert ended == ["slow"]


async def test_tokens_are_fetched_once_and_again_before_they_run_out(
    broker: MemoryBroker, datasets: Agent, runtime: FakeRuntime
) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        await soon(hub.call("count", {"of": []}))
        before = len(broker.tokens)
        await soon(hub.call("count", {"of": []}))
        assert len(broker.tokens) == before
        await runtime.advance(3000)
        await soon(hub.call("count", {"of": []}))
    assert [one.target_agent_id for one in broker.tokens[before:]] == ["datasets", "tester"]


async def test_an_agent_calls_as_itself_and_the_trace_goes_on(broker: MemoryBroker, datasets: Agent) -> None:
    lab = Agent("tester", runtime=datasets._runtime)
    traces: list[str] = []

    @datasets.task("trace")
    async def trace(task: Task) -> str:
        traces.append(task.trace_id)
        return task.trace_id

    @lab.task("relay")
    async def relay(task: Task) -> list[str]:
        return [task.trace_id, await lab.client.call("trace", {})]

    broker.let_in("third", "lab")
    async with broker.serving(datasets, lab), broker.client("third") as hub:
        mine, theirs = await soon(hub.call("relay", {}))
    assert mine == theirs == traces[0]


async def test_keys_survive_a_restart_of_the_agent(broker: MemoryBroker, runtime: FakeRuntime, tmp_path: Path) -> None:
    def made() -> Agent:
        agent = Agent("datasets", runtime=runtime, state_dir=tmp_path)

        @agent.task("patient", pii=True)
        async def patient(name: str) -> dict[str, Any]:
            return {"name": name}

        return agent

    async with broker.client("tester") as hub:
        async with broker.serving(made()):
            await soon(hub.call("patient", {"name": "A"}))
        async with broker.serving(made()):
            assert await soon(hub.call("patient", {"name": "B"})) == {"name": "B"}
    (kept,) = (tmp_path / "keys").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert broker.count("initiate_handshake") == 1


@pytest.mark.parametrize("mode", ["broker", "end-to-end"])
async def test_an_agent_that_lost_its_keys_agrees_again(broker: MemoryBroker, runtime: FakeRuntime, mode: str) -> None:
    def made() -> Agent:
        agent = Agent("datasets", runtime=runtime)

        @agent.task("patient", pii=True)
        async def patient(name: str) -> dict[str, Any]:
            return {"name": name}

        return agent

    async with broker.client("tester") as hub:
        async with broker.serving(made()):
            await soon(hub.call("patient", {"name": "A"}, mode=mode))
        async with broker.serving(made()):
            calling = asyncio.ensure_future(hub.call("patient", {"name": "B"}, mode=mode))
            await runtime.advance(1)
            assert await soon(calling) == {"name": "B"}
    assert broker.count("initiate_handshake") == 2


async def test_a_client_serves_nothing(broker: MemoryBroker, datasets: Agent) -> None:
    async with broker.serving(datasets), broker.client("tester") as hub:
        found = await soon(hub.discover(intent="count"))
        assert [(one.agent.agent_id, one.available) for one in found] == [("datasets", True)]
        assert await soon(hub.discover("count", domain="lab")) == []
        with pytest.raises(NotSupported, match="management API"):
            await hub.task("x")
        with pytest.raises(NotSupported, match="priority"):
            await hub.submit("datasets", "count", {"of": []}, priority="high")
    assert broker.count("count", MessageType.RESPONSE) == 0
