"""Faults and error reports, both ways."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.agentmsg import samples

from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind, new_fault
from dragoman.protocols.agentmsg import errors
from dragoman.protocols.agentmsg.errors import AgentmsgError, fault_in, report_out
from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Level
from dragoman.wire.errors import Stage

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
facts = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name not in ("kind", "field", "retryable", "report")), values
)
faults = st.builds(
    Fault,
    kind=st.sampled_from(Kind),
    message=st.text(max_size=20),
    field=st.none() | st.sampled_from(["task_id", "to_agent", "payload.result", "from"]),
    retryable=st.booleans(),
    facts=facts,
)
attempts = st.fixed_dictionaries(
    {
        "attempt_number": st.integers(0, 99),
        "timestamp": st.just(samples.TIME),
        "strategy": st.text(max_size=8),
        "outcome": st.sampled_from(["success", "failure", "partial"]),
        "details": st.text(max_size=8),
    }
)
reports = st.fixed_dictionaries(
    {
        "error_id": st.text(min_size=1, max_size=8),
        "agent_id": st.just("ada"),
        "error_type": st.sampled_from([kind.value for kind in ErrorType]),
        "severity": st.sampled_from(get_args(Level)),
        "message": st.text(min_size=1, max_size=20),
        "context": st.fixed_dictionaries({}, optional={"input_data": values, "details": facts.filter(bool)}),
        "recovery_attempts": st.lists(attempts, max_size=3),
        "suggested_actions": st.lists(st.text(max_size=9), max_size=3),
    },
    optional={"stack_trace": st.text(max_size=9), "unknown": values},
)


def parsed(tree: dict[str, Any]) -> ErrorReport:
    return msgspec.convert(tree, ErrorReport)


@given(faults)
def test_a_fault_of_the_hub_comes_back_as_itself(fault: Fault) -> None:
    told = report_out(fault, error_id="e")
    assert fault_in(parsed(told), told) == fault


@given(reports)
def test_a_report_of_an_agent_goes_out_as_it_came(said: dict[str, Any]) -> None:
    fault = fault_in(parsed(said), said)
    kept = msgspec.json.decode(msgspec.json.encode(fault), type=Fault)  # as a task's row keeps it
    assert report_out(kept, error_id="other") == said


@pytest.mark.requirement("AM-ERR-2")
@pytest.mark.parametrize("type", ErrorType)
@pytest.mark.parametrize("said", [None, True, False])
def test_what_a_report_calls_worth_another_try_is_tried_again(type: ErrorType, said: bool | None) -> None:
    details = {} if said is None else {"retryable": said}
    tree = {**samples.REPORT, "error_type": type.value, "context": {"details": details}}
    fault = fault_in(parsed(tree), tree)
    wanted = errors.TABLE[type].retry if said is None else said
    assert (fault.retryable, fault.kind in Rules().retried) == (wanted, wanted)
    assert report_out(fault, error_id="e") == {
        **tree,
        "context": {"details": {"retryable": said}} if _odd(type, said) else {},
    }


def _odd(type: ErrorType, said: bool | None) -> bool:
    return said is not None and errors.TABLE[type].retry is not said


def test_every_type_has_a_kind_and_every_kind_a_type() -> None:
    assert set(errors.KINDS) == set(ErrorType)
    assert set(errors.TYPES) == set(Kind)


def test_a_huge_report_stays_with_its_fault_in_short() -> None:
    tree = {
        **samples.REPORT,
        "stack_trace": "x" * 10**6,
        "context": {"input_data": "y" * 10**6},
        "recovery_attempts": [{**samples.ATTEMPT, "details": "z" * 1000}] * 100,
        "suggested_actions": ["w" * 10**4] * 100,
    }
    fault = fault_in(parsed(tree), tree)
    assert len(msgspec.json.encode(fault)) < 40 * 1024
    parsed(report_out(fault, error_id="e"))


def test_a_kind_in_the_details_counts_only_in_reports_of_the_hub() -> None:
    tree = {**samples.REPORT, "context": {"details": {"kind": "forbidden"}}}
    assert fault_in(parsed(tree), tree).kind is Kind.TIMEOUT


def test_a_fault_that_says_what_to_do_is_the_suggestion() -> None:
    fault = new_fault(Kind.CONFLICT, "already in use", next="choose a new one")
    assert report_out(fault, error_id="e")["suggested_actions"] == ["Choose a new one."]


@pytest.mark.parametrize(
    ("stage", "type", "kind"),
    [
        (Stage.SIZE, ErrorType.VALIDATION_ERROR, Kind.TOO_LARGE),
        (Stage.SHAPE, ErrorType.VALIDATION_ERROR, Kind.INVALID),
        (Stage.MEANING, ErrorType.AUTHENTICATION_ERROR, Kind.FORBIDDEN),
        (Stage.ORDER, ErrorType.VALIDATION_ERROR, Kind.MISMATCH),
        (Stage.ORDER, ErrorType.RESOURCE_EXHAUSTED, Kind.OVERLOADED),
    ],
)
def test_what_the_codec_refused(stage: Stage, type: ErrorType, kind: Kind) -> None:
    fault = AgentmsgError("no", stage=stage, field="f", error_type=type).fault
    assert (fault.kind, fault.field, fault.facts) == (kind, "f", {"stage": stage.value})
