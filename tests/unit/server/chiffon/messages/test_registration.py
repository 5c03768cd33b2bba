"""What an agent says of itself when it registers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dragoman.core.commands import RegisterAgent
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.chiffon.errors import InvalidMessage, UnsupportedVersion
from dragoman.protocols.chiffon.types import Registration
from dragoman.server.chiffon.inbound import registration_of
from dragoman.server.chiffon.outbound import registered, status_of
from dragoman.wire.errors import Stage


def registration(**more: Any) -> Registration:
    return msgspec.convert(
        {"agent_id": "infra-1", "agent_type": "infra", "supported_versions": ["1.0"], **more}, Registration
    )


@pytest.mark.requirement("chiffon-D9")
def test_a_registration_is_a_command(infra: Agent) -> None:
    limits = {"max_concurrent_tasks": 3, "max_memory_mb": 512, "max_gpu_vram_mb": 128, "gpu": 1}
    spoken = registration(work_types=["a", "b"], limits=limits, supported_versions=["2.0", "1.0"])
    assert registration_of(infra, spoken) == RegisterAgent(
        principal=infra.id,
        protocol="chiffon",
        kind="infra",
        work_types=("a", "b"),
        max_concurrent=3,
        memory_mb=512,
        gpu_vram_mb=128,
        protocol_version="1.0",
        details={"supported_versions": ["2.0", "1.0"], "limits": limits},
    )


def test_an_agent_that_names_no_work_does_any(infra: Agent) -> None:
    assert registration_of(infra, registration()).work_types is None


def test_a_kind_may_be_given_when_none_was(infra: Agent) -> None:
    assert registration_of(msgspec.structs.replace(infra, kind=None), registration(agent_type="code")).kind == "code"


@pytest.mark.requirement("all-D1")
@pytest.mark.parametrize(
    ("change", "field"), [({"agent_id": "infra-2"}, "agent_id"), ({"agent_type": "code"}, "agent_type")]
)
def test_a_false_identity_is_refused(change: dict[str, str], field: str, infra: Agent) -> None:
    with pytest.raises(Refused) as refused:
        registration_of(infra, registration(**change))
    assert (refused.value.fault.kind, refused.value.fault.field) == (Kind.FORBIDDEN, field)


@pytest.mark.requirement("chiffon-D9")
def test_no_common_version_is_refused_with_our_versions(infra: Agent) -> None:
    with pytest.raises(UnsupportedVersion) as refused:
        registration_of(infra, registration(supported_versions=["2.0"]))
    fault = refused.value.fault
    assert (fault.kind, fault.facts["supported_versions"], status_of(fault)) == (Kind.UNSUPPORTED_VERSION, ["1.0"], 422)


@pytest.mark.parametrize("value", [0, -1, "many", 10_001, True, 1.5])
def test_a_limit_that_makes_no_sense_is_refused(value: object, infra: Agent) -> None:
    with pytest.raises(Refused) as refused:
        registration_of(infra, registration(limits={"max_concurrent": value}))
    assert refused.value.fault.field == "limits.max_concurrent"


@pytest.mark.parametrize(
    ("limits", "memory", "gpu"),
    [
        ({"memory_mb": 1, "gpu_vram_mb": 128}, 1, 128),
        ({"max_memory_mb": 2, "memory_mb": 1, "max_gpu_vram_mb": 3, "gpu_vram_mb": 128}, 2, 3),
        ({"max_memory_mb": None, "memory_mb": 1, "max_gpu_vram_mb": None}, 1, None),
        ({"gpu_vram_mb": 0}, None, 0),  # it has no GPU
    ],
)
def test_a_limit_may_be_called_as_the_document_calls_the_resource(
    limits: dict[str, Any], memory: int | None, gpu: int | None, infra: Agent
) -> None:
    command = registration_of(infra, registration(limits=limits))
    assert (command.memory_mb, command.gpu_vram_mb) == (memory, gpu)


@pytest.mark.parametrize(
    ("name", "value"), [("max_memory_mb", 0), ("max_gpu_vram_mb", -1), ("gpu_vram_mb", "8G"), ("gpu_vram_mb", True)]
)
def test_a_resource_that_makes_no_sense_is_refused(name: str, value: object, infra: Agent) -> None:
    with pytest.raises(Refused) as refused:
        registration_of(infra, registration(limits={name: value}))
    assert (refused.value.fault.kind, refused.value.fault.field) == (Kind.INVALID, f"limits.{name}")


def test_the_answer_names_the_version(infra: Agent) -> None:
    assert json.loads(registered(infra)) == {
        "agent_id": "infra-1",
        "agent_type": "infra",
        "protocol_version": "1.0",
        "status": "registered",
    }


@pytest.mark.requirement("all-D3")
@pytest.mark.parametrize(
    ("stage", "kind", "status"),
    [
        (Stage.SIZE, Kind.TOO_LARGE, 413),
        (Stage.DEPTH, Kind.INVALID, 400),
        (Stage.JSON, Kind.INVALID, 400),
        (Stage.SHAPE, Kind.INVALID, 400),
        (Stage.MEANING, Kind.INVALID, 422),
    ],
)
def test_the_check_that_refused_decides_the_status(stage: Stage, kind: Kind, status: int) -> None:
    fault = InvalidMessage("no", "payload.x", stage=stage).fault
    assert (fault.kind, fault.field, status_of(fault)) == (kind, "payload.x", status)


def test_nobody_of_that_kind_is_not_found_and_nobody_there_now_is_unavailable() -> None:
    assert status_of(Fault(kind=Kind.UNAVAILABLE, message="", field="to_agent")) == 404
    assert status_of(Fault(kind=Kind.UNAVAILABLE, message="")) == 503
