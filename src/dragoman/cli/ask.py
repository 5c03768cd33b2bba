"""`dragoman ask`: what agents ask people."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman.cli import arguments, lists, printing
from dragoman.cli.arguments import LOCAL, LOOK, Cursor, For, HubLocation, Interval, Limit, Output, OutputLines
from dragoman.cli.deadline import Deadline, Outage, repeat
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import as_json, line
from dragoman.cli.hubclient import Hub
from dragoman.cli.lists import Since, newest_first
from dragoman.cli.printing import Column, col

app = App(name="ask", help="Questions that agents put to people: ls, answer, watch.")

COLUMNS = (
    col("id"),
    col("agent"),
    col("asked", "asked_of", rare=True),
    Column("status", lambda question: None if question.get("status") == "open" else question.get("status"), rare=True),
    Column("waits", lambda question: printing.age(question.get("created_at")), right=True, spare=True),
    col("question"),
    Column("answers", lambda question: _choices(question) or "any"),
    Column("left", lambda question: printing.left(question.get("deadline")), right=True, spare=True),
)

NO_MORE = {
    "answered": "this question has been answered already",
    "expired": "this question has expired: no answer came in time",
    "withdrawn": "this question was withdrawn: its task has ended",
    "with_agent": "an agent is asked this question; a person is only asked if no agent can answer",
}
"""Why a question that is not open takes no answer."""


@app.command
def ls(
    *,
    status: Annotated[
        Literal["open", "with_agent", "answered", "expired", "withdrawn", "all"],
        Parameter(help="Only questions with this status; open ones wait for a person."),
    ] = "open",
    since: Since = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """List the questions that wait for an answer, the newest first."""
    wanted = None if status == "all" else status
    answer = newest_first(Hub.find(location), "questions", limit=limit, cursor=cursor, since=since, status=wanted)
    page = printing.Listing(answer, "questions", COLUMNS, output, "dragoman ask ls", status=status, since=since)
    open_ones = [question for question in page.items if question.get("status") == "open"]
    otherwise = "dragoman ask watch" if status == "open" else "dragoman ask ls"
    first = _how_to_answer(open_ones[0]) if open_ones else otherwise
    counted = page.count("question")
    if status == "open":
        counted += " to answer"
    elif status == "all":
        counted += f"; {len(open_ones)} of them to answer"
    page.end(None if open_ones or (page.more and status == "open") else True, counted, first)


@app.command(usage="Usage: dragoman ask answer [OPTIONS] ID [ANSWER]")
def answer(
    id: Annotated[str, Parameter(name="ID", help="The question's id, or enough of its beginning or end.")],
    text: Annotated[
        str | None, Parameter(name="ANSWER", help="The answer; read as JSON if it is JSON, else as text.")
    ] = None,
    /,
    *,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Answer a question. The first answer counts."""
    hub = Hub.find(location)
    question: Mapping[str, Any] = lists.found(hub, "questions", id)
    if text is None:
        if over := NO_MORE.get(str(question.get("status"))):
            raise CommandError(Exit.NOT_ALLOWED, over, next=_afterwards(question))
        text = _prompt(question)
    try:
        done = hub.post("questions", str(question["id"]), "answer", body={"answer": _meant(question, text)})
    except CommandError as failure:
        if failure.code is Exit.USAGE and question.get("options"):
            failure.next = _how_to_answer(question)
        elif failure.code is Exit.NOT_ALLOWED:
            failure.next = _afterwards(question)
        raise
    printing.done(done, output, f"answered {line(question.get('agent'))}: {line(text)}", _afterwards(question))


@app.command
def watch(
    *,
    interval: Interval = 1.0,
    seconds: For = None,
    output: OutputLines = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Show questions as they come, and on a terminal take the answers. What is left stays open."""
    deadline = Deadline(seconds)
    hub = Hub.find(location, Deadline(None if seconds is None else max(seconds, LOOK)))
    seen: set[str] = set()
    if output == "table":
        printing.note("waiting for questions; Ctrl-C ends this")
    outage = Outage("questions stay open", there=False, deadline=deadline)
    repeat(lambda: _show_new(hub, seen, output), deadline, interval, outage)


def _show_new(hub: Hub, seen: set[str], output: OutputLines) -> None:
    for question in hub.pages("questions", status="open"):
        if question["id"] in seen:
            continue
        if output != "table":
            printing.document(question, "jsonl")
        elif sys.stdin.isatty():
            _take(hub, question)
        else:
            print(f"{line(question['id'])}  {line(question.get('agent'))} asks: {line(question.get('question'))}")
            sys.stdout.flush()
        seen.add(question["id"])


def _take(hub: Hub, question: Mapping[str, Any]) -> None:
    """Ask the person at the terminal, until there is an answer; nothing typed leaves the question for later."""
    while True:
        text = _prompt(question)
        if not text:
            printing.note("  left open")
            return
        try:
            hub.post("questions", str(question["id"]), "answer", body={"answer": _meant(question, text)})
            break
        except CommandError as failure:
            if failure.code is Exit.UNREACHABLE:  # it is asked again when the hub is back
                raise
            printing.note(f"  {failure.sentence}")
            if failure.code is not Exit.USAGE:  # another person was faster; go on with the next question
                return
    printing.verdict(True, f"answered {line(question.get('agent'))}: {line(text)}")


def _value(option: Any) -> Any:
    """The value that the agent gets; some options also have a label for people."""
    return option["value"] if isinstance(option, Mapping) and "value" in option else option


def _typed(option: Any) -> str:
    """How a person says which option is meant."""
    value = _value(option)
    return value if isinstance(value, str) else as_json(value)


def _label(option: Any) -> str | None:
    label = option.get("label") if isinstance(option, Mapping) and "value" in option else None
    return label if isinstance(label, str) else None


def _choices(question: Mapping[str, Any]) -> str:
    """What can be answered, each with its label where that says more."""
    choices = []
    for option in question.get("options") or ():
        typed, label = _typed(option), _label(option)
        choices.append(line(typed if label in (None, typed) else f"{typed} ({label})"))
    return ", ".join(choices)


def _how_to_answer(question: Mapping[str, Any]) -> str:
    """Without an answer in it: that one is the person's own."""
    return f"dragoman ask answer {line(question['id'])} ANSWER"


def _afterwards(question: Mapping[str, Any]) -> str:
    return f"dragoman task show {line(question['task_id'])}" if question.get("task_id") else "dragoman ask ls"


def _meant(question: Mapping[str, Any], text: str) -> Any:
    """An option by what it looks like, or by its label; anything else as JSON, or text."""
    options = question.get("options") or ()
    for looks in (_typed, lambda option: line(_typed(option)), _label):
        for option in options:
            if text == looks(option):
                return _value(option)
    return arguments.value(text)


def _prompt(question: Mapping[str, Any]) -> str:
    if not sys.stdin.isatty():
        raise CommandError(Exit.USAGE, "the answer is missing", next=_how_to_answer(question))
    choices = _choices(question)
    printing.note(f"{line(question.get('agent'))} asks: {line(question.get('question'))}")
    if question.get("context"):
        printing.note(f"  context: {printing.cell(question['context'])}")
    for escalation in question.get("escalations") or ():
        more = f" {printing.cell(escalation['resources'])}" if escalation.get("resources") else ""
        printing.note(f"  {line(escalation.get('agent'))} could not answer: {line(escalation.get('content'))}{more}")
    if choices:
        printing.note(f"  one of: {choices}")
    print("answer: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
