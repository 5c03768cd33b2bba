"""`dragoman task`: what was asked of the hub, how far it is, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman.cli import arguments, lists, printing, task_view
from dragoman.cli.arguments import LOCAL, Cursor, HubLocation, Limit, Output, Seconds
from dragoman.cli.deadline import Deadline
from dragoman.cli.errors import Exit
from dragoman.cli.escaping import block, line
from dragoman.cli.hubclient import Hub
from dragoman.cli.lists import Since
from dragoman.cli.printing import Column, col
from dragoman.cli.task_view import body_of, event_line, follow, log_line

app = App(name="task", help="Tasks: ls, show, logs, why, retry, cancel, pause, resume, handover.")

Status = Literal["queued", "assigned", "running", "waiting", "completed", "failed", "cancelled"]

TaskName = Annotated[str, Parameter(name="ID", help="The task's id, or enough of its beginning or end.")]

COLUMNS = (
    col("id"),
    col("type"),
    Column("status", lambda task: f"waiting: {task['waiting']}" if task.get("waiting") else task.get("status")),
    col("agent"),
    col("sandbox", rare=True),
    Column("done", lambda task: f"{task.get('progress') or 0} %", right=True, spare=True),
    col("tries", "attempts", right=True, spare=True),
    Column("age", lambda task: printing.age(task.get("created_at")), right=True),
)


@app.command
def ls(
    *,
    status: Annotated[Status | None, Parameter(help="Only those.")] = None,
    type: Annotated[str | None, Parameter(help="Only this type of work.")] = None,
    agent: Annotated[str | None, Parameter(help="Only those of this agent.")] = None,
    protocol: Annotated[str | None, Parameter(help="Only those whose caller or agent speaks it.")] = None,
    search: Annotated[str | None, Parameter(help="Only those with these words in id, name, type or error.")] = None,
    since: Since = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """List tasks, the newest first."""
    start = lists.begin(since)
    answer = Hub.find(location).get(
        "tasks",
        status=status,
        type=type,
        agent=agent,
        protocol=protocol,
        q=search,
        since=None if start is None else start.isoformat(),
        limit=limit,
        cursor=cursor,
    )
    page = printing.Listing(
        answer,
        "tasks",
        COLUMNS,
        output,
        "dragoman task ls",
        status=status,
        type=type,
        agent=agent,
        protocol=protocol,
        search=search,
        since=since,
    )
    failed = [task for task in page.items if task.get("status") == "failed"]
    shown = (failed or page.items)[:1]
    first = f"dragoman task show {line(shown[0]['id'])}" if shown else "dragoman call AGENT WORK key=value"
    counted = page.count("task") + (f", {len(failed)} failed" if failed else "")
    page.end(False if failed else True if shown else None, counted, first)


@app.command
def show(id: TaskName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Show one task: the verdict, the road it took, why, and what came out."""
    task = lists.found(Hub.find(location), "tasks", id)
    if printing.as_data(task, output):
        return
    mark = printing.mark(task_view.GOOD.get(str(task.get("status"))), sys.stdout)
    print(f"{mark} {task_view.headline(task, sys.stdout)}")
    print(f"  {task_view.route_of(task)}")
    if why := task_view.reason(task.get("error")):
        print(f"  why: {why}")
    printing.facts(
        [
            ("description", task.get("description")),
            ("priority", task["priority"] if task.get("priority") not in (None, "normal") else None),
            ("created", f"{task.get('created_at')}  ({printing.age(task.get('created_at'))} ago)"),
            ("deadline", task.get("deadline") if task.get("status") not in task_view.FINAL else None),
            ("sandbox", task.get("sandbox")),
            ("contract", task.get("contract")),
            ("called", _called(task)),
            ("waits for", task.get("blocked_by")),
            ("question", task.get("question")),
            ("parent", task.get("parent")),
            ("trace", task.get("trace_id")),
            ("input", task.get("input")),
            ("result", task.get("result")),
            ("exit code", task.get("exit_code")),
        ]
    )
    if task.get("output") and not _is_shown(task):
        print("  output:")
        print("\n".join(f"    {text}" for text in block(task["output"]).rstrip("\n").split("\n")))
    printing.suggest(*task_view.next_commands(task))


@app.command
def logs(
    id: TaskName,
    /,
    *,
    follow_: Annotated[bool, Parameter(name=["--follow", "-f"], negative=(), help="Go on until it ends.")] = False,
    timeout: Annotated[Seconds | None, Parameter(help="Seconds to follow it.")] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Print what happened to a task, with its output as it came and what was logged beside it."""
    deadline = Deadline(timeout)
    hub = Hub.find(location, deadline)
    task = lists.found(hub, "tasks", id)
    newest = int(task.get("events") or 0)
    everything = []
    for event in follow(hub, str(task["id"]), deadline=deadline):
        if output == "json":
            everything.append(event.data)
        elif output == "jsonl":
            printing.document(event.data, output)
        else:
            _log(event.data.get("at") if isinstance(event.data, Mapping) else "", event_line(event), body_of(event))
        seq = event.data.get("seq", 0) if isinstance(event.data, Mapping) else 0
        if not follow_ and seq >= newest:
            break
    if output == "json":
        printing.document({"events": everything})
    if output == "table":
        task = hub.get("tasks", str(task["id"]))
        printing.verdict(task_view.GOOD.get(str(task.get("status"))), task_view.headline(task))
        printing.suggest(f"dragoman task show {line(task['id'])}")
    return Exit.FAILED if follow_ and task.get("status") in ("failed", "cancelled") else Exit.OK


def _is_shown(task: Mapping[str, Any]) -> bool:
    """Whether its output stands there already: as its result, or as why it failed."""
    output = str(task["output"]).strip()
    if output == str((task.get("error") or {}).get("message") or "").strip():
        return True
    try:
        return task.get("result") is not None and json.loads(output) == task["result"]
    except ValueError:
        return False


def _called(task: Mapping[str, Any]) -> str | None:
    """What its caller calls it."""
    return f"{task['called']} by {task.get('requested_by')}" if task.get("called") else None


def _log(at: Any, words: str, body: Mapping[str, Any]) -> None:
    print(f"{line(at)}  {words}", flush=True)
    if isinstance(body.get("output"), str) and body["output"]:
        print("\n".join(f"    {text}" for text in block(body["output"]).rstrip("\n").split("\n")), flush=True)
    for entry in body.get("lines") or ():
        stream = (entry.get("context") or {}).get("stream", "event")
        print(f"    {log_line(stream, entry.get('level'), entry.get('message'))}", flush=True)


@app.command
def why(id: TaskName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Explain why a task is where it is."""
    hub = Hub.find(location)
    answer = lists.meant(hub, "tasks", id, lambda whole: hub.get("tasks", whole, "why"))
    if printing.as_data(answer, output):
        return
    state = line(answer.get("status")) + (f" ({line(answer['waiting'])})" if answer.get("waiting") else "")
    good = task_view.GOOD.get(str(answer.get("status")))
    state = printing.colored(state, sys.stdout)
    print(f"{printing.mark(good, sys.stdout)} task {line(answer.get('task_id') or id)}  {state}")
    reasons = answer.get("reasons") or []
    for reason in reasons:
        print(f"  - {line(reason.get('text'))}")
    if not reasons:
        print(f"  {line(answer.get('summary'))}")
    for advice in answer.get("next") or ():
        printing.suggest(line(advice))


@app.command(usage="Usage: dragoman task retry [OPTIONS] ID [INPUT...]")
def retry(
    id: TaskName,
    /,
    *input: Annotated[str, Parameter(help="A new input, if the old one was wrong: key=value, @file or -.")],
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Do a task again, from the start: failed, cancelled, or stuck with an agent."""
    body = {"input": arguments.read(input)} if input else {}
    _change(location, id, "retry", body, "sent again", output)


@app.command
def cancel(
    id: TaskName,
    /,
    *,
    reason: Annotated[str | None, Parameter(help="The reason; it is kept with the task.")] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Stop a task and everything it started."""
    body = {"reason": reason} if reason else {}
    _change(location, id, "cancel", body, "stopped", output)


@app.command
def pause(id: TaskName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Hold a task until it is resumed."""
    _change(location, id, "pause", {}, "held", output)


@app.command
def resume(id: TaskName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Let a held task go on."""
    _change(location, id, "resume", {}, "goes on", output)


@app.command
def handover(
    id: TaskName,
    agent: Annotated[str, Parameter(help="The agent that gets it.")],
    /,
    *,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Give an unfinished task to another agent. The hub tells the agent that has it to stop."""
    _change(location, id, "handover", {"agent": agent}, f"given to {line(agent)}", output)


def _change(location: HubLocation, id: str, verb: str, body: Mapping[str, Any], done: str, output: Output) -> None:
    task = lists.post(Hub.find(location), "tasks", id, verb, body)
    printing.done(task, output, f"{done}: {task_view.headline(task)}", *task_view.next_commands(task))
