"""Output that comes in pieces (chiffon-D4): in order, without gaps, within the quota.

The pieces themselves are events; here is only the cursor that says how far each stream has come, kept with the task,
so that nothing has to be held in memory and a restart changes nothing.
"""

from __future__ import annotations

import msgspec

from dragoman.core.commands import Span
from dragoman.core.errors import Fault, Kind, Refused, refuse
from dragoman.core.files import FileRef
from dragoman.core.tasks.model import OutputCursor, Task
from dragoman.core.work import Work

UNNAMED = "personal"
RESULT = "result"
"""The stream of a result's own pieces; any other belongs to a step."""
PIECE = "piece:"
"""How those of a task's `recent` begin that name a message with a piece of output."""


def field_of(stream: str) -> str:
    """What a message calls the text of a stream."""
    return "output" if stream == RESULT else "step.output"


def take_output(work: Work, task: Task, stream: str, text: str, span: Span | None) -> Task:
    """The task with this piece accounted for."""
    if not text and span is None:
        return task
    size, quota = len(text.encode()), work.rules.output_quota
    exceeded = f"the task's output exceeds {quota} bytes; write it elsewhere and send a reference"
    if span is None:
        if task.output_bytes + size > quota:
            raise refuse(Kind.INVALID, exceeded, field=field_of(stream))
        return msgspec.structs.replace(task, output_bytes=task.output_bytes + size)
    unbegun = OutputCursor(stream=stream, received=0)
    cursor = next((c for c in task.output if c.stream == stream and span.start > 0), unbegun)
    rest = tuple(c for c in task.output if c.stream != stream)
    if task.output_bytes + size > quota or (span.total or 0) > quota:
        raise worthless(work, task, rest, exceeded, f"{field_of(stream)}_chunk")
    problem = misfit(cursor, span)
    if problem:
        raise worthless(work, task, rest, f"{problem}; start again at byte 0", f"{field_of(stream)}_chunk")
    task = msgspec.structs.replace(task, output_bytes=task.output_bytes + size)
    total = span.total if span.total is not None else cursor.total
    if total is not None and span.end == total:
        return msgspec.structs.replace(task, output=rest)
    return msgspec.structs.replace(task, output=(*rest, OutputCursor(stream=stream, received=span.end, total=total)))


def forget_output(task: Task) -> Task:
    """The task as if nothing of its output had come: an attempt failed, and the next one tells all of it, perhaps in
    the same messages (not yet put). Its files stay, for whoever was told of them, and count no more."""
    recent = tuple(mark for mark in task.recent if not mark.startswith(PIECE))
    return msgspec.structs.replace(task, output=(), output_bytes=0, files_before=len(task.files), recent=recent)


def take_files(work: Work, task: Task, files: tuple[FileRef, ...]) -> Task:
    """The task with these files belonging to it. Their names are in the event; the row of a personal task is not
    shut, and does not say it."""
    if not files:
        return task
    if task.personal:
        files = tuple(msgspec.structs.replace(file, name=UNNAMED) for file in files)
    measured = (*task.files[task.files_before :], *files)
    if len(measured) > work.rules.files_per_task:
        message = f"more than {work.rules.files_per_task} files; put them into one archive"
        raise refuse(Kind.TOO_LARGE, message, field="file")
    if sum(file.size for file in measured) > work.rules.file_quota:
        message = f"the task's files exceed {work.rules.file_quota} bytes; keep them elsewhere and send a reference"
        raise refuse(Kind.TOO_LARGE, message, field="file")
    return msgspec.structs.replace(task, files=(*task.files, *files))


def misfit(cursor: OutputCursor, span: Span) -> str | None:
    """Why a piece does not follow what came before, or None.

    Whether it is as long as it says, its protocol has checked: labels may be rounded there (chiffon-D3).
    """
    if span.start < cursor.received:
        return f"the chunk starts at {span.start}, but {cursor.received} bytes have come already: an overlap"
    if span.start > cursor.received:
        return f"the chunk starts at {span.start}, but only {cursor.received} bytes have come: a gap"
    if span.total is not None and cursor.total is not None and span.total != cursor.total:
        return f"the total was {cursor.total} bytes and is now {span.total}"
    if span.total is not None and span.end > span.total:
        return f"the chunk ends at {span.end}, after the total of {span.total}"
    return None


def check_complete(work: Work, task: Task) -> None:
    """At the end every stream that said its length must have come whole."""
    for cursor in task.output:
        if cursor.total is not None and cursor.received < cursor.total:
            problem = f"only {cursor.received} of {cursor.total} bytes of {cursor.stream} have come"
            rest = tuple(c for c in task.output if c.stream != cursor.stream)
            again = "they are dropped; send them again from byte 0, or the result without them"
            raise worthless(work, task, rest, f"{problem}; {again}", f"{field_of(cursor.stream)}_chunk")


def worthless(work: Work, task: Task, rest: tuple[OutputCursor, ...], why: str, field: str) -> Refused:
    """A set of pieces that cannot become whole is forgotten, so that it can begin anew."""
    work.put(msgspec.structs.replace(task, output=rest))
    return Refused(Fault(kind=Kind.INVALID, message=why, field=field), keep=True)
