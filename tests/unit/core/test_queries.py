"""The read models, as pure functions: outputs put together, reasons told, credentials never."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.heads import task_head

from dragoman.core.ids import MINUTE, SECOND, AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent, Breaker, BreakerState
from dragoman.core.model.silence import Watched
from dragoman.core.model.tasks import Event, EventKind, Origin, Status, Task, Waiting
from dragoman.core.queries import AgentFacts, AgentStatus, Transcript, agent_out, agent_status, log_line, task_out, why
from dragoman.core.routing.routes import Route, serves
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind

NOW = Instant(1_768_796_464_000_000)
LATER = Instant(NOW + MINUTE)


def task(**changes: Any) -> Task:
    base = {
        "id": TaskId("t-1"), "type": "a", "status": Status.QUEUED, "created_at": NOW, "updated_at": NOW,
        "origin": Origin(principal=AgentId("planner"), protocol="chiffon", request_id="r", digest="d"),
        "route": Route("a", "infra").queue, "deadline": NOW, "idle_limit": 30 * SECOND, "rank": 0,
        "trace_id": "0" * 32,
    }  # fmt: skip
    return task_head(**{**base, **changes})


def agent(id: str = "mux-1", **changes: Any) -> Agent:
    base = {"id": AgentId(id), "protocol": "chiffon", "created_at": NOW, "token_hash": "canary", "kind": "infra"}
    return Agent(**{**base, **changes})


def read(*said: tuple[EventKind, dict[str, Any]], most: int = 1 << 20) -> Any:
    transcript = Transcript(most)
    for seq, (kind, body) in enumerate(said, 1):
        raw = msgspec.Raw(msgspec.json.encode(body))
        transcript.feed(Event(task=TaskId("t-1"), seq=seq, at=NOW, kind=kind, body=raw))
    return transcript.account


def piece(text: str, *chunk: int | None, stream: str = "step-1") -> tuple[EventKind, dict[str, Any]]:
    body: dict[str, Any] = {"status": "running", "output": text}
    return EventKind.PROGRESS, body | ({"chunk": chunk, "stream": stream} if chunk else {})


def test_pieces_follow_each_other_and_a_split_one_stays_where_it_began() -> None:
    account = read(piece("a"), piece("b1", 0, 2, 4), piece("c"), piece("b2", 2, 4, 4))
    assert account.output == "ab1b2c"
    assert not account.whole


def test_a_stream_that_starts_again_before_it_was_whole_replaces_what_it_had() -> None:
    assert read(piece("xx", 0, 2, 4), piece("y1", 0, 2, 4), piece("y2", 2, 4, 4)).output == "y1y2"


def test_a_stream_that_starts_again_after_it_was_whole_goes_on() -> None:
    assert read(piece("xx", 0, 2, 2), piece("yy", 0, 2, 2)).output == "xxyy"


def test_chunks_without_a_total_are_put_in_order() -> None:
    assert read(piece("aa", 0, 2, None), piece("bb", 2, 4, None)).output == "aabb"


def test_the_result_of_a_whole_output_replaces_the_pieces() -> None:
    account = read(piece("half"), (EventKind.COMPLETED, {"output": "all", "result": [1], "exit_code": 0}))
    assert (account.output, account.whole, account.exit_code) == ("all", True, 0)
    assert msgspec.json.decode(account.result) == [1]


@pytest.mark.requirement("chiffon-D4")
def test_a_set_that_never_became_whole_is_no_part_of_a_result() -> None:
    done = (EventKind.COMPLETED, {"output": "", "exit_code": 0})
    assert read(piece("a"), piece("xx", 0, 2, 4), piece("bb", 0, 2, None, stream="step-2"), done).output == "abb"
    broken_off = (EventKind.FAILED, {"fault": {"kind": "timeout", "message": "silent"}})
    assert read(piece("a"), piece("xx", 0, 2, 4), broken_off).output == "axx"  # all there is


def test_an_empty_output_of_the_result_leaves_the_pieces() -> None:
    assert read(piece("half"), (EventKind.COMPLETED, {"output": "", "result": 1})).output == "half"


def test_a_split_result_is_put_together_without_the_pieces_of_steps() -> None:
    last = {"output": "R2", "chunk": [2, 4, 4], "stream": "result", "exit_code": 1}
    account = read(piece("step"), piece("R1", 0, 2, 4, stream="result"), (EventKind.FAILED, last))
    assert (account.output, account.exit_code) == ("R1R2", 1)


def test_a_new_attempt_begins_its_output_again_but_the_old_text_stays_until_then() -> None:
    failed = (EventKind.ATTEMPT_FAILED, {"fault": {"kind": "timeout", "message": "m"}, "attempt": 1})
    assert read(piece("old"), failed).output == "old"
    assert read(piece("old"), failed, piece("new")).output == "new"


def test_an_answer_goes_on_and_a_retry_forgets_the_result() -> None:
    answered = (EventKind.ANSWERED, {"input": {"b": 2}, "answer": "yes"})
    account = read((EventKind.SUBMITTED, {"input": {"a": 1}}), piece("1"), answered, piece("2"))
    assert (account.output, msgspec.json.decode(account.input)) == ("12", {"b": 2})
    retried = read((EventKind.FAILED, {"output": "bad", "exit_code": 1}), (EventKind.RETRIED, {"input": {}}))
    assert (retried.output, retried.exit_code) == ("", None)


def test_more_than_the_bound_is_cut_off_and_says_so() -> None:
    """What was too long was left out in the middle, and what came behind it stood beside what came before."""
    account = read(piece("aaaa"), piece("bbbb"), piece("cc"), most=6)
    assert (account.output, account.truncated) == ("aaaabb", True)
    split = [piece("aaaa", 0, 4, 10), piece("bbbb", 4, 8, 10)]
    done = (EventKind.COMPLETED, {"exit_code": 0})
    account = read(*split, piece("cc", 8, 10, 10), done, most=6)
    assert (account.output, account.truncated) == ("aaaabb", True)
    assert read(*split, piece("dd", 0, 2, 2), done, most=6).output == "dd"  # it began again
    failed = (EventKind.ATTEMPT_FAILED, {"fault": {"kind": "timeout", "message": "m"}, "attempt": 1})
    account = read(piece("aaaa"), piece("bbbb"), failed, piece("cc"), most=6)
    assert (account.output, account.truncated) == ("cc", False)


@given(st.lists(st.text(max_size=5), max_size=8), st.integers(1, 4))
def test_an_output_is_the_same_whole_and_in_chunks(texts: list[str], size: int) -> None:
    whole = "".join(texts).encode("utf-8", "ignore").decode()
    data = [whole[i : i + size] for i in range(0, len(whole), size)]
    said, at = [], 0
    for text in data:
        end = at + len(text.encode())
        said.append(piece(text, at, end, len(whole.encode())))
        at = end
    assert read(*said).output == whole


@pytest.mark.parametrize(
    ("changes", "reachable", "load", "status"),
    [
        ({}, False, 0, AgentStatus.OFFLINE),
        ({}, False, 3, AgentStatus.OFFLINE),
        ({"connected": True, "last_seen_at": NOW}, False, 0, AgentStatus.OFFLINE),
        ({}, True, 0, AgentStatus.CONNECTING),
        ({"registered_at": NOW}, True, 0, AgentStatus.IDLE),
        ({"registered_at": NOW}, True, 1, AgentStatus.BUSY),
    ],
)
def test_the_status_of_an_agent(changes: Any, reachable: bool, load: int, status: AgentStatus) -> None:
    assert agent_status(agent(**changes), reachable=reachable, load=load) is status


def test_an_agent_is_shown_without_its_credential() -> None:
    assert b"canary" not in msgspec.json.encode(agent_out(agent(), reachable=True, tasks=(), now=NOW))


@pytest.mark.parametrize(
    ("protocol", "connected", "reachable", "seen"),
    [("coven", True, True, "now"), ("coven", True, False, "then"), ("coven", False, True, "then"),
     ("agentmsg", True, True, "then")],
)  # fmt: skip
def test_an_agent_counts_as_seen_while_its_connection_is_open(
    protocol: str, connected: bool, reachable: bool, seen: str
) -> None:
    known = agent(protocol=protocol, connected=connected, last_seen_at=NOW)
    told = agent_out(known, reachable=reachable, tasks=(), now=Instant(NOW + SECOND))
    assert told.last_seen == {"then": "2026-01-19T04:21:04Z", "now": "2026-01-19T04:21:05Z"}[seen]
    again = agent_out(known, reachable=False, tasks=(), now=Instant(NOW + SECOND), seen=Instant(NOW + SECOND))
    assert again.last_seen == "2026-01-19T04:21:05Z"


def test_a_task_is_shown_with_or_without_its_contents() -> None:
    bare = msgspec.json.decode(msgspec.json.encode(task_out(task(), protocol_out=None)))
    assert "output" not in bare
    assert "history" not in bare
    assert (bare["sandbox"], bare["called"]) == (None, None)
    full = msgspec.json.decode(msgspec.json.encode(task_out(task(), protocol_out="coven", account=read(piece("x")))))
    assert (full["output"], full["result"], full["protocol_out"], full["progress"]) == ("x", None, "coven", 0)


def test_a_task_is_shown_with_its_callers_name_for_it_and_the_sandbox_it_ran_in() -> None:
    origin = Origin(principal=AgentId("ada"), protocol="agentmsg", request_id="r", digest="d", called="job-7")
    shown = task_out(task(origin=origin, sandbox="bubblewrap", contract="c-1"), protocol_out=None)
    assert (shown.called, shown.sandbox, shown.contract) == ("job-7", "bubblewrap", "c-1")
    body = msgspec.Raw(b'{"agent":"mux-1","attempt":2,"sandbox":"bubblewrap"}')
    line = log_line(Event(task=TaskId("t"), seq=1, at=NOW, kind=EventKind.ASSIGNED, body=body))
    assert line.text == "to mux-1 · attempt 2 · in a sandbox: bubblewrap"


@pytest.mark.parametrize("at", ["2026-01-19T04:21:04Z", NOW], ids=["a time", "as it was written before"])
def test_a_log_line_says_when_a_task_is_retried(at: object) -> None:
    body = msgspec.Raw(msgspec.json.encode({"fault": {"message": "it broke"}, "attempt": 1, "retry_at": at}))
    line = log_line(Event(task=TaskId("t"), seq=1, at=NOW, kind=EventKind.ATTEMPT_FAILED, body=body))
    assert line.text == "attempt 1 · it broke · again at 2026-01-19T04:21:04Z"


@pytest.mark.parametrize("odd", [5, True, [], {"rows": 2}])
def test_a_log_line_has_the_result_of_a_tool_whatever_it_is(odd: object) -> None:
    """It was an internal error, for a log and for a trace."""
    words = msgspec.json.encode(odd).decode()
    said = {"step": {"name": odd, "number": odd}, "tool_use": {"name": odd}, "tool_result": {"output": odd}}
    body = msgspec.Raw(msgspec.json.encode(said))
    line = log_line(Event(task=TaskId("t"), seq=1, at=NOW, kind=EventKind.PROGRESS, body=body))
    assert line.text == f"{words} · uses {words} · tool gave: {words}"


def test_a_log_line_is_cut() -> None:
    body = msgspec.Raw(msgspec.json.encode({"output": "x" * 10_000}))
    line = log_line(Event(task=TaskId("t"), seq=1, at=NOW, kind=EventKind.PROGRESS, body=body))
    assert len(line.text) == 4097


AGENTS = st.builds(
    agent,
    kind=st.sampled_from(["infra", "code", None]),
    role=st.sampled_from(["ops", None]),
    work_types=st.sampled_from([None, ("a",), ("b",), ()]),
    capabilities=st.sampled_from([(), ("x",), ("x", "y")]),
    id=st.sampled_from(["mux-1", "mux-2"]),
)
ROUTES = st.builds(
    Route,
    type=st.sampled_from(["a", "b"]),
    kind=st.sampled_from(["infra", "mux-2", None]),
    pinned=st.sampled_from(["mux-1", None]),
    role=st.sampled_from(["ops", None]),
    capabilities=st.sampled_from([(), ("x",), ("y", "x")]),
    besides=st.sampled_from(["mux-2", None]),
)


@given(AGENTS, ROUTES)
def test_why_agrees_with_routing_about_who_could_do_it(one: Agent, route: Route) -> None:
    told = why(task(route=route.queue), now=NOW, agents=[AgentFacts(agent=one, reachable=True, load=0)])
    [candidate] = told.candidates
    assert candidate.able == serves(one, route)
    assert candidate.free == candidate.able
    assert candidate.able or candidate.reasons


def test_why_names_the_obstacles_of_those_who_could_first() -> None:
    facts = [
        AgentFacts(agent=agent("b", breaker=Breaker(state=BreakerState.OPEN, failures=5)), reachable=False, load=0),
        AgentFacts(agent=agent("wrong", kind="code"), reachable=True, load=0),
        AgentFacts(agent=agent("a"), reachable=False, load=0),
    ]
    told = why(task(queue="q"), now=NOW, agents=facts, ahead=3, ahead_exact=False)
    assert [one.agent for one in told.candidates] == ["a", "b", "wrong"]
    assert "with at least 3 before it" in told.summary
    assert "a: offline, never seen; b: offline, never seen, breaker open after 5 failures" in told.summary


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": Status.ASSIGNED, "owner": "m"}, "given to m"),
        ({"status": Status.RUNNING, "owner": "m", "last_sign_at": Instant(NOW - 2 * SECOND)}, "2.0 s ago"),
        ({"status": Status.RUNNING, "owner": "m", "lost_at": NOW, "deadline": LATER}, "connection to m broke"),
        ({"status": Status.WAITING, "waiting": Waiting.HELD}, "person paused it"),
        ({"status": Status.WAITING, "waiting": Waiting.AGENT, "owner": "m"}, "m said that it pauses"),
        ({"status": Status.WAITING, "waiting": Waiting.DEPENDENCY, "blocked_by": ("t-9",)}, "waits for t-9"),
        ({"status": Status.WAITING, "waiting": Waiting.PERSON, "owner": "m"}, "person's answer"),
        ({"status": Status.COMPLETED, "finished_at": NOW}, "completed, and has been since 2026-01-19T04:21:04Z"),
        ({"status": Status.FAILED, "fault": Fault(kind=Kind.TIMEOUT, message="silent")}, "last error was: silent"),
        ({"attempts": 2, "wake_at": NOW}, "Attempt 3 is due at 2026-01-19T04:21:04Z"),
        ({}, "no agent is known"),
    ],
)
def test_why_has_a_sentence_for_every_state(changes: Any, words: str) -> None:
    watched = Watched(Rules(), Instant(NOW - MINUTE), agent("m"), None, is_linked=False, seen_at=None)
    assert words.lower() in why(task(**changes), now=NOW, watched=watched).summary.lower()
