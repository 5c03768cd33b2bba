"""`dragoman trace`: everything that came of one request, across tasks, agents and protocols.

✓ trace 5d41…  2 tasks  (12.4 s)
  deploy  7f3a…  completed  12.4 s  planner ─chiffon→ hub → mux-1
  │   +0.000  submitted
  │   +0.002  assigned · to mux-1 · attempt 1
  │   +0.010 … +4.100  progress ×12 · 50 %
  ├─ check  81c0…  completed  1.2 s  mux-1 ─coven→ hub → lint
  │   +4.110  submitted
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dragoman.cli import lists, printing, task_view
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import duration, moment

Task = Mapping[str, Any]
Step = Mapping[str, Any]


def trace(
    id: Annotated[str, Parameter(name="ID", help="A task's id, or enough of its beginning or end.")],
    /,
    *,
    sequence: Annotated[
        bool, Parameter(negative=(), help="Draw each step between caller, hub, agents and people.")
    ] = False,
    svg: Annotated[
        Path | None, Parameter(allow_leading_hyphen=True, help="Write the same drawing as SVG to FILE; - for stdout.")
    ] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Show all tasks that came of one request: as a tree with times, or as a sequence diagram."""
    hub = Hub.find(location)
    answer = lists.meant(hub, "tasks", id, lambda whole: hub.get("tasks", whole, "trace"))
    if svg is not None:
        _write_svg(hub, answer, svg)
        return
    drawn = hub.get("tasks", str(answer["task_id"]), "sequence") if sequence else None
    if printing.as_data(answer if drawn is None else drawn, output):
        return
    tasks: Sequence[Task] = answer.get("tasks") or []
    begun = min((at for task in tasks if (at := moment(task.get("created_at")))), default=None)
    ended = [moment(task.get("finished_at")) for task in tasks]
    took = max((at for at in ended if at), default=None) if all(ended) else None
    length = f"  ({duration((took - begun).total_seconds())})" if took and begun else "  (goes on)"
    good = _verdict(tasks)
    print(f"{printing.mark(good, sys.stdout)} trace {line(answer.get('trace_id'))}  {_count(answer)}{length}")
    if drawn is not None:
        _sequence(drawn, tasks, begun)
    else:
        for task, above in _depths(tasks):
            _branch(task, above, begun)
    failed = next((task for task in tasks if task.get("status") == "failed"), None)
    asked = line((failed or {}).get("id") or answer.get("task_id"))
    if failed is not None:
        printing.suggest(f"dragoman task why {asked}", f"dragoman task retry {asked}")
    else:
        printing.suggest(f"dragoman task show {asked}", *([] if sequence else [f"dragoman trace {asked} --sequence"]))


def _verdict(tasks: Sequence[Task]) -> bool | None:
    marks = [task_view.GOOD.get(str(task.get("status"))) for task in tasks]
    return False if False in marks else None if None in marks else True


def _count(answer: Mapping[str, Any]) -> str:
    tasks, left = answer.get("tasks") or [], answer.get("left_out") or 0
    return printing.count(len(tasks), "task") + (f", and at least {left} more" if left else "")


def _depths(tasks: Sequence[Task]) -> list[tuple[Task, int]]:
    """Each task with how deep it stands; the hub sends them in the order of the tree."""
    depths: dict[str, int] = {}
    for task in tasks:
        cause = str(task.get("cause"))
        depths[str(task["id"])] = depths[cause] + 1 if cause in depths else 0
    return [(task, depths[str(task["id"])]) for task in tasks]


def _branch(task: Task, depth: int, begun: datetime | None) -> None:
    indent = "  " + "│  " * (depth - 1) + ("├─ " if depth else "")
    start, end = moment(task.get("created_at")), moment(task.get("finished_at"))
    took = f"  {duration((end - start).total_seconds())}" if start and end else ""
    sandbox = f"  in a sandbox: {line(task['sandbox'])}" if task.get("sandbox") else ""
    route_of = task_view.route_of({**task, "protocol_out": _spoken(task)})
    status = line(task.get("status")) + (f" ({line(task['waiting'])})" if task.get("waiting") else "")
    status = printing.colored(status, sys.stdout)
    print(f"{indent}{line(task.get('type'))}  {line(task.get('id'))}  {status}{took}  {route_of}{sandbox}")
    for step in task.get("steps") or ():
        print(f"  {'│  ' * depth}│   {_when(step, begun)}  {_words(step)}")
    if task.get("steps_left_out"):
        more = f"… and {line(task['steps_left_out'])} more events: dragoman task logs {line(task['id'])}"
        print(f"  {'│  ' * depth}│   {more}")


def _spoken(task: Task) -> str | None:
    """What the agent that has it speaks, as far as its steps tell."""
    agent = task.get("agent")
    protocols = (
        step.get("protocol") for step in task.get("steps") or () if agent in (step.get("source"), step.get("target"))
    )
    return next((protocol for protocol in protocols if protocol), None)


def _when(step: Step, begun: datetime | None) -> str:
    def since(text: Any) -> str:
        at = moment(text)
        return line(text) if at is None or begun is None else f"+{(at - begun).total_seconds():.3f}"

    first, last = since(step.get("at")), since(step.get("until"))
    return first if step.get("count", 1) == 1 or first == last else f"{first} … {last}"


def _words(step: Step) -> str:
    times = f" ×{step['count']}" if step.get("count", 1) > 1 else ""
    text = f" · {line(step['text'])}" if step.get("text") else ""
    return f"{line(str(step.get('kind')).replace('_', ' '))}{times}{text}"


def _write_svg(hub: Hub, trace: Mapping[str, Any], file: Path) -> None:
    from dragoman.cli.sequence import as_svg

    text = as_svg(hub.get("tasks", str(trace["task_id"]), "sequence"))
    if str(file) == "-":
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            Exit.USAGE, f"{file} cannot be written: {error.strerror}", next="name another file"
        ) from None
    printing.verdict(True, f"{line(file)} shows {_count(trace)}")


def _sequence(model: Mapping[str, Any], tasks: Sequence[Task], begun: datetime | None) -> None:
    """Lanes and arrows, or a list of arrows where the terminal is too narrow for so many lanes."""
    from dragoman.cli.sequence import in_terminal

    columns = shutil.get_terminal_size((120, 24)).columns
    lines = in_terminal(model, columns, colours=printing.colourful(sys.stdout))
    if lines is None:
        _arrows(tasks, begun)
        return
    for text in lines:
        print(text)


def _arrows(tasks: Sequence[Task], begun: datetime | None) -> None:
    """Every step as an arrow, in the order of time; the hub is between all of them."""
    steps = [(step, task) for task in tasks for step in task.get("steps") or ()]
    steps.sort(key=lambda pair: (str(pair[0].get("at")), str(pair[1].get("id")), pair[0].get("seq") or 0))
    rows = [(_when(step, begun), _arrow(step), line(str(task.get("id"))[-4:]), _words(step)) for step, task in steps]
    widths = [max((len(row[place]) for row in rows), default=0) for place in range(2)]
    for when, arrow, short, words in rows:
        print(f"  {when.rjust(widths[0])}  {arrow.ljust(widths[1])}  …{short}  {words}")


def _arrow(step: Step) -> str:
    source, target, protocol = (line(step.get(name) or "") for name in ("source", "target", "protocol"))
    if source == target:
        return source
    if "hub" in (source, target) or target == "person":
        between = f"─{protocol}→" if protocol else "→"
        return f"{source} {between} {target}"
    return f"{source} {f'─{protocol}→' if protocol else '→'} hub → {target}"
