"""`dragoman call`: give work, watch it, print the result.

Data on stdout: the result, or with `-o json` the whole task, or with `-o jsonl` each event and then the task.
Progress and verdict are words, on stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dragoman.cli import arguments, lists, printing, task_view
from dragoman.cli.agent import must_exist
from dragoman.cli.arguments import LOCAL, HubLocation, Output, Timeout
from dragoman.cli.deadline import Deadline
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import block, line
from dragoman.cli.hubclient import Event, Hub
from dragoman.cli.task_view import body_of, event_line, event_text, follow

Via = Literal["api", "chiffon", "coven", "forge", "agentmsg", "a2acp"]

WORTH_A_LINE = frozenset(
    {
        "assigned", "progress", "paused", "resumed", "asked", "answered", "handover_asked", "handed_over",
        "attempt_failed", "released",
    }
)  # fmt: skip
"""The events worth a line while one waits."""


def call(
    agent: Annotated[str, Parameter(help="An agent's id, or a kind of agent.")],
    work: Annotated[str, Parameter(help="The type of work, for example run_playbook.")],
    /,
    *input: Annotated[str, Parameter(help="key=value, @file.json, or - for JSON on stdin.", allow_leading_hyphen=True)],
    via: Annotated[Via, Parameter(help="The protocol by which the work is sent to the hub.")] = "api",
    wait: Annotated[bool, Parameter(negative="--detach", help="Wait for the result, or only print the id.")] = True,
    kind: Annotated[bool, Parameter(negative=(), help="AGENT is a kind, even if an agent has that id.")] = False,
    timeout: Annotated[Timeout | None, Parameter(help="Seconds to wait in all; the task goes on after them.")] = None,
    name: Annotated[str | None, Parameter(help="The task's name.")] = None,
    priority: Annotated[
        Literal["low", "normal", "high", "critical"] | None, Parameter(help="The task's priority [normal].")
    ] = None,
    after: Annotated[list[str] | None, Parameter(negative=(), help="Ids of tasks that must be done first.")] = None,
    require: Annotated[list[str] | None, Parameter(negative=(), help="A capability the agent must have.")] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Give work to an agent, or to a kind of agent, and wait for the result."""
    body: dict[str, Any] = {"type": work, "input": arguments.read(input)}
    deadline = Deadline(timeout)
    hub = Hub.find(location, deadline)
    body[must_exist(hub, agent, only_kind=kind)] = agent
    extras = {"name": name, "priority": priority, "dependencies": after, "required_capabilities": require}
    if after:
        after = [lists.whole(hub, "tasks", task) for task in after]
        extras["dependencies"] = after
    body |= {key: value for key, value in extras.items() if value}

    if via != "api":
        return _call_via(hub, via, body, wait, deadline, output, location)
    task = _submit(hub, body)
    if wait:
        return _watch(hub, task, deadline, output)
    id = line(task["id"])
    if output == "table":
        printing.verdict(True, f"accepted: {task_view.headline(task)}")
        print(id)
        printing.suggest(f"dragoman task show {id}", f"dragoman task logs {id} --follow")
    else:
        printing.document(task, output)
    return Exit.OK


def _submit(hub: Hub, body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        # Under a key, so that the hub would take a repetition for the same request.
        task: Mapping[str, Any] = hub.ask("POST", "tasks", body=body, headers={"Idempotency-Key": os.urandom(16).hex()})
    except CommandError as failure:
        if failure.code is Exit.TIMEOUT:
            failure.sentence += "; it may have accepted the task nevertheless"
            failure.next = "dragoman task ls"
        raise
    return task


def _call_via(
    hub: Hub, via: Via, body: Mapping[str, Any], wait: bool, deadline: Deadline, output: Output, location: HubLocation
) -> int:
    from dragoman.cli.call_via import ChiffonCaller, ProtocolCaller, require_supported

    if not wait:
        raise CommandError(Exit.USAGE, f"--via {via} must wait for the result", next="leave out --detach or --via")
    require_supported(via, body)
    caller = ChiffonCaller(hub) if via == "chiffon" else ProtocolCaller(hub, via, location, body, deadline)
    over = False
    try:
        code = _watch(hub, caller.submit(body), deadline, output)
        over = True
        return code
    finally:
        caller.leave(over=over)


def _watch(hub: Hub, task: Mapping[str, Any], deadline: Deadline, output: Output) -> int:
    id = str(task["id"])
    printing.verdict(None, f"task {line(id)}  {task_view.route_of(task)}")
    if task.get("status") in ("queued", "waiting"):
        _explain(hub, id)
    live = output == "table" and printing.shows_bar(sys.stderr)
    try:
        with printing.ProgressBar() if live else nullcontext() as shown:
            for event in follow(hub, id, deadline=deadline):
                _tell(event, output, shown)
    except KeyboardInterrupt:
        printing.note(f"\n  task {line(id)} goes on")
        printing.suggest(f"dragoman task logs {line(id)} --follow", f"dragoman task cancel {line(id)}")
        raise
    return finish(hub.get("tasks", id), output)


def _explain(hub: Hub, id: str) -> None:
    """Say why no agent works at it yet: no event may come for as long as an attempt lasts."""
    try:
        reasons = hub.get("tasks", id, "why").get("reasons") or ()
    except CommandError:
        return  # it was only additional information
    for reason in reasons:
        printing.note(f"  {line(reason.get('text'))}")


def _tell(event: Event, output: Output, shown: printing.ProgressBar | None) -> None:
    if output == "jsonl":
        printing.document(event.data, output)
    elif event.kind in WORTH_A_LINE:
        body = body_of(event)
        percent, piece = body.get("percent"), str(body.get("output") or "")
        is_piece = event.kind == "progress" and piece and not event_text(event)  # of an answer, as it comes
        if shown is not None and not is_piece and event.kind in ("progress", "assigned", "resumed"):
            text = event_text(event, with_percent=False) if event.kind == "progress" else event_line(event)
            shown.update(percent if isinstance(percent, int | float) else None, text)
            return
        printing.note(f"  “{line(piece[:120])}”" if is_piece else f"  {event_line(event)}")
        if event.kind == "asked":
            printing.note(f"  {_who_answers(body.get('asked_of'))}")
            if shown is not None:
                shown.update(None, "waits for an answer")


def _who_answers(asked: object) -> str:
    if not asked:
        return f"a person must answer: {printing.runnable('dragoman ask ls')}"
    return f"{line(asked)}, an agent, was asked; the task goes on when it has answered"


def finish(task: Mapping[str, Any], output: Output) -> int:
    """The end of a task: its result on stdout, the verdict on stderr, the exit code."""
    good = task.get("status") == "completed"
    if output != "table":
        printing.document(task, output)
    else:
        result = task.get("result")
        if result is None or result == "":
            result = task.get("output")
        if isinstance(result, str):
            if result:
                print(block(result).rstrip("\n"))
        elif result is not None:
            printing.document(result)
    printing.verdict(good, task_view.headline(task))
    if not good:
        printing.note(f"  {task_view.route_of(task)}")
        if why := task_view.reason(task.get("error")):
            printing.note(f"  why: {why}")
    printing.suggest(*task_view.next_commands(task))
    return Exit.OK if good else Exit.FAILED
