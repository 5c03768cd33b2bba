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

from dragoman.cli import arguments, bar, printing, shortids, story
from dragoman.cli.agent import must_exist
from dragoman.cli.deadline import Deadline
from dragoman.cli.escaping import block, line
from dragoman.cli.exits import Exit, Stop
from dragoman.cli.follow import body_of, follow, in_words
from dragoman.cli.hubclient import Event, Hub
from dragoman.cli.options import HERE, Output, Reach, Seconds

Via = Literal["api", "chiffon", "coven", "forge", "agentmsg", "a2acp"]

TELLING = frozenset(
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
    via: Annotated[Via, Parameter(help="The door by which it enters the hub.")] = "api",
    wait: Annotated[bool, Parameter(negative="--detach", help="Wait for the result, or only print the id.")] = True,
    kind: Annotated[bool, Parameter(negative=(), help="AGENT is a kind, also if an agent is called so.")] = False,
    timeout: Annotated[Seconds | None, Parameter(help="Seconds for all of it; the task goes on after them.")] = None,
    name: Annotated[str | None, Parameter(help="What to call the task.")] = None,
    priority: Annotated[
        Literal["low", "normal", "high", "critical"] | None, Parameter(help="What goes first [normal].")
    ] = None,
    after: Annotated[list[str] | None, Parameter(negative=(), help="Ids of tasks that must be done first.")] = None,
    require: Annotated[list[str] | None, Parameter(negative=(), help="A capability the agent must have.")] = None,
    output: Output = "table",
    reach: Reach = HERE,
) -> int:
    """Give work to an agent, or to a kind of agent, and wait for the result."""
    body: dict[str, Any] = {"type": work, "input": arguments.read(input)}
    deadline = Deadline(timeout)
    hub = Hub.find(reach, deadline)
    body[must_exist(hub, agent, only_kind=kind)] = agent
    extras = {"name": name, "priority": priority, "dependencies": after, "required_capabilities": require}
    if after:
        after = [shortids.whole(hub, "tasks", task) for task in after]
        extras["dependencies"] = after
    body |= {key: value for key, value in extras.items() if value}

    if via != "api":
        return _by_another_door(hub, via, body, wait, deadline, output, reach)
    task = _submit(hub, body)
    if wait:
        return _watch(hub, task, deadline, output)
    id = line(task["id"])
    if output == "table":
        printing.verdict(True, f"accepted: {story.headline(task)}")
        print(id)
        printing.following(f"dragoman task show {id}", f"dragoman task logs {id} --follow")
    else:
        printing.document(task, output)
    return Exit.OK


def _submit(hub: Hub, body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        # Under a key, so that the hub would take a repetition for the same request.
        task: Mapping[str, Any] = hub.ask("POST", "tasks", body=body, headers={"Idempotency-Key": os.urandom(16).hex()})
    except Stop as stop:
        if stop.code is Exit.TIMEOUT:
            stop.sentence += "; it may have taken the task all the same"
            stop.next = "dragoman task ls"
        raise
    return task


def _by_another_door(
    hub: Hub, via: Via, body: Mapping[str, Any], wait: bool, deadline: Deadline, output: Output, reach: Reach
) -> int:
    from dragoman.cli.envelope import Orchestrator
    from dragoman.cli.passing import Passer, require_words

    if not wait:
        raise Stop(Exit.USAGE, f"--via {via} needs somebody who takes the result", next="leave --detach or --via out")
    require_words(via, body)
    caller = Orchestrator(hub) if via == "chiffon" else Passer(hub, via, reach, body, deadline)
    over = False
    try:
        code = _watch(hub, caller.submit(body), deadline, output)
        over = True
        return code
    finally:
        caller.leave(over=over)


def _watch(hub: Hub, task: Mapping[str, Any], deadline: Deadline, output: Output) -> int:
    id = str(task["id"])
    printing.verdict(None, f"task {line(id)}  {story.road(task)}")
    if task.get("status") in ("queued", "waiting"):
        _explain(hub, id)
    live = output == "table" and bar.is_possible(sys.stderr)
    try:
        with bar.Bar() if live else nullcontext() as shown:
            for event in follow(hub, id, deadline=deadline):
                _tell(event, output, shown)
    except KeyboardInterrupt:
        printing.words(f"\n  task {line(id)} goes on without you")
        printing.following(f"dragoman task logs {line(id)} --follow", f"dragoman task cancel {line(id)}")
        raise
    return finish(hub.get("tasks", id), output)


def _explain(hub: Hub, id: str) -> None:
    """Why nobody is at it yet. Nothing else may come for as long as an attempt lasts."""
    try:
        reasons = hub.get("tasks", id, "why").get("reasons") or ()
    except Stop:
        return  # it only was to be said along the way
    for reason in reasons:
        printing.words(f"  {line(reason.get('text'))}")


def _tell(event: Event, output: Output, shown: bar.Bar | None) -> None:
    if output == "jsonl":
        printing.document(event.data, output)
    elif event.kind in TELLING:
        body = body_of(event)
        words, piece = in_words(event), str(body.get("output") or "")
        percent = body.get("percent")
        says_more = words != "progress" or not piece  # than a piece of an answer, which is worth a line
        if shown is not None and says_more and event.kind in ("progress", "assigned", "resumed"):
            told = words.removeprefix("progress").removeprefix(f" · {percent} %").removeprefix(" · ")
            shown.update(percent if isinstance(percent, int | float) else None, told)
            return
        if words == "progress" and piece:  # a piece of an answer, as it comes
            words = f"“{line(piece[:120])}”"
        printing.words(f"  {words}")
        if event.kind == "asked":
            printing.words(f"  {_who_answers(body.get('asked_of'))}")
            if shown is not None:
                shown.update(None, "waits for an answer")


def _who_answers(asked: object) -> str:
    if not asked:
        return f"a person must answer: {printing.as_it_stands('dragoman ask ls')}"
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
    printing.verdict(good, story.headline(task))
    if not good:
        printing.words(f"  {story.road(task)}")
        if why := story.reason(task.get("error")):
            printing.words(f"  why: {why}")
    printing.following(*story.next_commands(task))
    return Exit.OK if good else Exit.FAILED
