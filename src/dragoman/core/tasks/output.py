"""Output that comes in pieces (chiffon-D4), within the quota.

The pieces are events; the task keeps only a cursor per stream, so nothing is held in memory and a restart changes
nothing. If a piece comes before the one that it follows (over a transport without order), the hub keeps it as a held
event and publishes it when the gap closes. So readers of a task get its output in order.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.commands import Finish, ReportProgress, Span
from dragoman.core.model.tasks import Ahead, Event, EventKind, OutputCursor, Task
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, new_fault, refuse
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import read_progress

UNNAMED = "personal"
RESULT = "result"
"""The stream of a result's own pieces; any other stream belongs to a step."""
MOST_AHEAD = 1024
"""Pieces of one stream that may wait for the one before them."""
PIECE = "piece:"
"""The prefix of the entries in a task's `recent` that name a message with a piece of output."""
MOST_WHOLE = 8
"""Streams of a task whose whole set has come and that are remembered, the latest ones: a block that would change one is
refused itself, not the result behind it."""
FROM_THE_START = "start again at byte 0"
"""What to do next, where a set of pieces is forgotten."""


def field_of(stream: str) -> str:
    """The field that carries the text of a stream."""
    return "output" if stream == RESULT else "step.output"


def take_output(work: Work, task: Task, stream: str, text: str, span: Span | None) -> Task:
    """The task after this piece of output."""
    if not text and span is None:
        return task
    size, quota = len(text.encode()), work.rules.output_quota
    exceeded, elsewhere = f"the task's output exceeds {quota} bytes", "write it elsewhere and send a reference"
    if span is None:
        if task.output.bytes + size > quota:
            raise refuse(Kind.INVALID, exceeded, next=elsewhere, field=field_of(stream))
        return replace(task, output=replace(task.output, bytes=task.output.bytes + size))
    cursor, rest = cursor_of(task, stream, span), tuple(c for c in task.output.streams if c.stream != stream)
    if task.output.bytes + size > quota or (span.total or 0) > quota:
        raise worthless(work, task, rest, exceeded, f"{field_of(stream)}_chunk", elsewhere)
    problem = misfit(cursor, span)
    if problem and is_whole(cursor):
        again = "leave it out, or send all of it again from byte 0"
        raise refuse(Kind.INVALID, problem, next=again, field=f"{field_of(stream)}_chunk")
    if problem:
        raise worthless(work, task, rest, problem, f"{field_of(stream)}_chunk")
    task = replace(task, output=replace(task.output, bytes=task.output.bytes + size))
    total = span.total if span.total is not None else cursor.total
    further = replace(cursor, received=span.end, total=total)
    whole = [known.stream for known in rest if is_whole(known)]
    if is_whole(further) and len(whole) >= MOST_WHOLE:
        rest = tuple(known for known in rest if known.stream != whole[0])
    return replace(task, output=replace(task.output, streams=(*rest, further)))


def is_whole(cursor: OutputCursor) -> bool:
    """Whether the set has come up to its total."""
    return cursor.total is not None and cursor.received == cursor.total


def cursor_of(task: Task, stream: str, span: Span) -> OutputCursor:
    """How far a stream has come. A piece at byte 0 starts it again, unless that piece is missing. Behind a whole set, a
    piece of another total belongs to a new one."""
    known = next((c for c in task.output.streams if c.stream == stream), None)
    if (
        known is None
        or (span.start == 0 and known.received)
        or (is_whole(known) and span.total not in (None, known.total))
    ):
        return OutputCursor(stream=stream, received=0)
    return known


def is_ahead(task: Task, stream: str, span: Span | None) -> bool:
    """Whether a piece came before the one that it follows."""
    return span is not None and span.start > cursor_of(task, stream, span).received


def hold_piece(
    work: Work, task: Task, command: ReportProgress | Finish, stream: str, span: Span, *, ends: str | None = None
) -> Task:
    """Keep a piece until the gap before it closes (not yet put). The same piece again changes nothing."""
    cursor, field = cursor_of(task, stream, span), f"{field_of(stream)}_chunk"
    rest = tuple(c for c in task.output.streams if c.stream != stream)
    for other in cursor.ahead:
        same = (other.start, other.end) == (span.start, span.end)
        if same and text_in(work.event(task.id, other.event)) == command.output:
            return task
        if other.start < span.end and span.start < other.end:
            what = f"the chunk {span.start}-{span.end} overlaps {other.start}-{other.end}"
            raise worthless(work, task, rest, what, field)
    total = cursor.total if span.total is None else span.total
    held = sum(one.end - one.start for cursor in task.output.streams for one in cursor.ahead)
    if task.output.bytes + held + span.end - span.start > work.rules.output_quota or len(cursor.ahead) >= MOST_AHEAD:
        raise worthless(work, task, rest, "too much has come before a piece that is missing", field)
    if (total or span.end) < span.end or cursor.total not in (None, total):
        raise worthless(work, task, rest, f"the chunk and the total of {total} contradict", field)
    task = work.record(
        task,
        EventKind.HELD_PIECE,
        command.content,
        agent=command.principal,
        protocol=command.protocol,
        raw=command.raw,
    )
    fault = command.fault if isinstance(command, Finish) else None
    piece = Ahead(span.start, span.end, task.seq, span.total, ends, fault)
    ahead = tuple(sorted((*cursor.ahead, piece), key=lambda one: one.start))
    waiting = replace(cursor, total=total, ahead=ahead)
    return replace(task, output=replace(task.output, streams=(*rest, waiting)))


def next_piece(work: Work, task: Task, stream: str) -> tuple[Task, Ahead, Event] | None:
    """The held piece that follows now, and the task without it; None if there is none."""
    cursor = next((c for c in task.output.streams if c.stream == stream), None)
    if cursor is None or not cursor.ahead or cursor.ahead[0].start != cursor.received:
        return None
    piece, rest = cursor.ahead[0], tuple(c for c in task.output.streams if c.stream != stream)
    task = replace(
        task,
        output=replace(task.output, streams=(*rest, replace(cursor, ahead=cursor.ahead[1:]))),
    )
    return task, piece, work.event(task.id, piece.event)


def text_in(event: Event) -> str:
    """The output that an event brings."""
    return read_progress(event.body).output or ""


def forget_output(task: Task) -> Task:
    """The task without its output (not yet put): an attempt failed, and the next one sends all of it again, perhaps in
    the same messages. Files stay, since readers know them, but do not count any more."""
    recent = tuple(mark for mark in task.output.recent if not mark.startswith(PIECE))
    return replace(
        task,
        output=replace(task.output, streams=(), bytes=0, files_before=len(task.output.files), recent=recent),
    )


def take_files(work: Work, task: Task, files: tuple[FileRef, ...]) -> Task:
    """The task with these files attached. The event has their names; the row of a personal task does not, since it is
    not encrypted."""
    if not files:
        return task
    if task.agreement.personal:
        files = tuple(replace(file, name=UNNAMED) for file in files)
    measured = (*task.output.files[task.output.files_before :], *files)
    if len(measured) > work.rules.files_per_task:
        raise refuse(
            Kind.TOO_LARGE,
            f"more than {work.rules.files_per_task} files",
            next="put them into one archive",
            field="file",
        )
    if sum(file.size for file in measured) > work.rules.file_quota:
        raise refuse(
            Kind.TOO_LARGE,
            f"the task's files exceed {work.rules.file_quota} bytes",
            next="keep them elsewhere and send a reference",
            field="file",
        )
    return replace(task, output=replace(task.output, files=(*task.output.files, *files)))


def misfit(cursor: OutputCursor, span: Span) -> str | None:
    """Why a piece does not follow what came before, or None.

    The protocol has checked its length: labels may be rounded there (chiffon-D3).
    """
    if span.start < cursor.received:
        return f"the chunk starts at {span.start}, but {cursor.received} bytes have come already: an overlap"
    if span.start > cursor.received:
        return f"the chunk starts at {span.start}, but only {cursor.received} bytes have come: a gap"
    if span.total is not None and cursor.total is not None and span.total != cursor.total:
        return f"the total was {cursor.total} bytes and is now {span.total}"
    total = cursor.total if span.total is None else span.total
    if total is not None and span.end > total:
        return f"the chunk ends at {span.end}, after the total of {total}"
    return None


def check_complete(work: Work, task: Task) -> None:
    """At the end, every stream with a known length must be complete."""
    for cursor in task.output.streams:
        if cursor.ahead or (cursor.total is not None and cursor.received < cursor.total):
            whole = "all" if cursor.total is None else str(cursor.total)
            problem = f"only {cursor.received} of {whole} bytes of {cursor.stream} have come without a gap"
            rest = tuple(c for c in task.output.streams if c.stream != cursor.stream)
            again = "send them again from byte 0, or the result without them"
            raise worthless(work, task, rest, f"{problem}; they are dropped", f"{field_of(cursor.stream)}_chunk", again)


def worthless(
    work: Work, task: Task, rest: tuple[OutputCursor, ...], why: str, field: str, next: str = FROM_THE_START
) -> Refused:
    """Forget a set of pieces that cannot become whole, so that the agent can start it again."""
    work.put(replace(task, output=replace(task.output, streams=rest)))
    return Refused(new_fault(Kind.INVALID, why, next=next, field=field), keep=True)
