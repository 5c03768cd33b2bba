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


def take_output(work: Work, task: Task, stream: str, text: str, span: Span | None) -> Task:
    """The task with this piece accounted for."""
    if not text and span is None:
        return task
    size = len(text.encode())
    if task.output_bytes + size > work.rules.output_quota:
        raise refuse(
            Kind.INVALID,
            f"the task's output exceeds {work.rules.output_quota} bytes; write it elsewhere and send a reference",
            field="output",
        )
    task = msgspec.structs.replace(task, output_bytes=task.output_bytes + size)
    if span is None:
        return task
    cursor = next((c for c in task.output if c.stream == stream), OutputCursor(stream=stream, received=0))
    rest = tuple(c for c in task.output if c.stream != stream)
    problem = misfit(cursor, span)
    if problem:  # the whole set is worthless now: forget it, so that it can begin anew
        work.put(msgspec.structs.replace(task, output=rest))
        fault = Fault(kind=Kind.INVALID, message=f"{problem}; start again at byte 0", field="output_chunk")
        raise Refused(fault, keep=True)
    total = span.total if span.total is not None else cursor.total
    if total is not None and span.end == total:
        return msgspec.structs.replace(task, output=rest)
    return msgspec.structs.replace(task, output=(*rest, OutputCursor(stream=stream, received=span.end, total=total)))


def take_files(work: Work, task: Task, files: tuple[FileRef, ...]) -> Task:
    """The task with these files belonging to it."""
    if not files:
        return task
    held = (*task.files, *files)
    if len(held) > work.rules.files_per_task:
        message = f"more than {work.rules.files_per_task} files; put them into one archive"
        raise refuse(Kind.TOO_LARGE, message, field="file")
    if sum(file.size for file in held) > work.rules.file_quota:
        message = f"the task's files exceed {work.rules.file_quota} bytes; keep them elsewhere and send a reference"
        raise refuse(Kind.TOO_LARGE, message, field="file")
    return msgspec.structs.replace(task, files=held)


def misfit(cursor: OutputCursor, span: Span) -> str | None:
    """Why a piece does not follow what came before, or None.

    Whether it is as long as it says, its protocol has checked: labels may be rounded there (chiffon-D3).
    """
    if 0 < span.start < cursor.received:
        return f"the chunk starts at {span.start}, but {cursor.received} bytes have come already: an overlap"
    if span.start > cursor.received:
        return f"the chunk starts at {span.start}, but only {cursor.received} bytes have come: a gap"
    if span.total is not None and cursor.total is not None and span.total != cursor.total:
        return f"the total was {cursor.total} bytes and is now {span.total}"
    if span.total is not None and span.end > span.total:
        return f"the chunk ends at {span.end}, after the total of {span.total}"
    return None


def check_complete(task: Task) -> None:
    """At the end every stream that said its length must have come whole."""
    for cursor in task.output:
        if cursor.total is not None and cursor.received < cursor.total:
            raise refuse(
                Kind.INVALID,
                f"{cursor.received} of {cursor.total} bytes of {cursor.stream} have come; send the missing ones first",
                field="output_chunk",
            )
