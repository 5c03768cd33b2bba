"""What a command prints: data on stdout, messages on stderr.

On a terminal a list is a table drawn by rich, which knows its width; into a pipe it is plain aligned columns, and
rich is not imported. `-o json` prints the API's answer, `-o jsonl` one item a line. Everything that came from
outside is escaped here, once.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from dragoman.app import program
from dragoman.cli import escaping
from dragoman.cli.arguments import Form
from dragoman.cli.errors import BETWEEN

Item = Mapping[str, Any]

GREEN, RED, CYAN, YELLOW, DIM = 32, 31, 36, 33, 2
STATES = {
    **dict.fromkeys(("completed", "idle", "active", "accepted", "answered", "healthy"), GREEN),
    **dict.fromkeys(("failed", "offline", "crashed", "refused", "unhealthy", "expired"), RED),
    **dict.fromkeys(("assigned", "running", "busy", "starting"), CYAN),
    **dict.fromkeys(("queued", "waiting", "open", "half_open", "paused", "draining", "degraded"), YELLOW),
    **dict.fromkeys(("cancelled", "stopped", "withdrawn", "ended", "terminated"), DIM),
}
"""The colour of a state, on a terminal."""
STYLES = {GREEN: "green", RED: "red", CYAN: "cyan", YELLOW: "yellow", DIM: "dim"}
STATE_COLUMNS = frozenset({"status", "standing", "outcome", "breaker"})

ERASE = "\r\x1b[K"
painted: list[object] = []
"""What writes over the last line of the terminal again and again (`ProgressBar`): another line erases that one
first."""

NARROWEST = 6
READABLE = 24
"""So much of a long text tells what it is about."""
WITHOUT_A_HUB = frozenset(
    {"dev", "serve", "config", "cert", "completion", "conformance", "play", "sandbox", "translate", "version"}
)
"""Commands that need no hub."""


class Column(NamedTuple):
    """`rare`: it is left out where no item has anything to show in it; `spare`: on a terminal that is too narrow."""

    title: str
    of: Callable[[Item], Any]
    right: bool = False
    rare: bool = False
    spare: bool = False


def col(title: str, key: str | None = None, *, right: bool = False, rare: bool = False, spare: bool = False) -> Column:
    """The column that shows one field as it is."""
    field = key or title
    return Column(title, lambda item: item.get(field), right, rare, spare)


def note(text: str) -> None:
    """Something to read, not to parse. The caller has escaped what came from outside."""
    sys.stdout.flush()
    print(f"{ERASE}{text}" if painted else text, file=sys.stderr, flush=True)


def verdict(good: bool | None, text: str) -> None:
    note(f"{mark(good, sys.stderr)} {text}")


def suggest(*commands: str) -> None:
    note(f"  next: {BETWEEN.join(map(runnable, commands))}")


def runnable(command: str) -> str:
    """A command of ours as it works here: by the name we were called by, and for the same hub. Other words pass."""
    name, _, rest = command.partition(" ")
    if name != "dragoman":
        return command
    alone = rest.partition(" ")[0] in WITHOUT_A_HUB or rest.endswith("--help")
    there = "" if alone else escaping.line(program.hub_option())
    return f"{program.program()} {rest}{there}"


def mark(good: bool | None, stream: TextIO) -> str:
    """✓, ✗, or • for what is neither."""
    sign, colour = ("•", "33") if good is None else ("✓", "32") if good else ("✗", "31")
    return f"\x1b[{colour}m{sign}\x1b[0m" if colourful(stream) else sign


def colored(text: str, stream: TextIO) -> str:
    """A state in its colour; what follows its first word is of the same colour."""
    colour = _colour(text)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and colourful(stream) else text


def _colour(text: str) -> int | None:
    return STATES.get(text.partition(" ")[0].rstrip(":"))


def colourful(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def document(value: Any, form: Form = "json") -> None:
    """One thing as JSON: indented to be read, or on one line."""
    print(escaping.as_json(value, indent=None if form == "jsonl" else 2))


def as_data(value: Any, form: Form) -> bool:
    """Print it as JSON, if that is asked for. Whether it was."""
    if form != "table":
        document(value, form)
    return form != "table"


def done(value: Any, form: Form, sentence: str, *commands: str) -> None:
    """The end of a command that changed something: what the API answered, or a sentence and what may come next."""
    if not as_data(value, form):
        verdict(True, sentence)
        suggest(*commands)


class Report:
    """A list that is printed entry by entry as it comes: lines below a heading for a person, JSON for a program."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._heading = ""
        self._records: list[dict[str, Any]] = []

    def add(self, heading: str, lines: Iterable[str], record: dict[str, Any]) -> None:
        self._records.append(record)
        if self._form == "jsonl":
            document(record, "jsonl")
        elif self._form == "table":
            if heading != self._heading:
                self._heading = heading
                print(heading)
            for text in lines:
                print(text, flush=True)

    def end(self, name: str, **facts: Any) -> None:
        """For `-o json`, one document with all records under `name`."""
        if self._form == "json":
            document({**facts, name: self._records})


class Listing:
    """A list that the API gave, printed at once. `command` lists it, `filters` are the options that it was given."""

    def __init__(
        self,
        answer: Mapping[str, Any],
        key: str,
        columns: Sequence[Column],
        form: Form,
        command: str = "",
        *,
        option: str = "--cursor",
        **filters: Any,
    ) -> None:
        self.items: Sequence[Item] = answer.get(key) or []
        self._form = form
        self.more = self._next_page(command, answer.get("next"), option, filters)
        """The command for the next page, if there is one."""
        if form == "json":
            document(answer)
        elif form == "jsonl":
            for item in self.items:
                document(item, form)
        elif self.items:
            table(self.items, columns)

    def end(self, good: bool | None, sentence: str, *commands: str, with_more: Sequence[str] = ()) -> None:
        """Below a table: how much it was, and what may come next: where there is more, the next page."""
        if self._form == "table":
            verdict(good, sentence)
            if self.more or commands:
                suggest(*([self.more, *with_more] if self.more else commands))

    def count(self, noun: str) -> str:
        return count(len(self.items), noun) + (", and more" if self.more else "")

    @staticmethod
    def _next_page(command: str, cursor: Any, option: str, filters: Mapping[str, Any]) -> str | None:
        if not cursor:
            return None
        given = "".join(f" --{name} {escaping.line(value)}" for name, value in filters.items() if value)
        return f"{command}{given}{escaping.line(program.typed('--limit'))} {option} {escaping.line(cursor)}"


def table(items: Sequence[Item], columns: Sequence[Column]) -> None:
    columns = [column for column in columns if not column.rare or any(map(column.of, items))]
    cells = [[cell(column.of(item)) for column in columns] for item in items]
    if sys.stdout.isatty():
        _rich_table(cells, columns)
        return
    titles = [column.title.upper() for column in columns]
    widths = [max(len(row[i]) for row in (titles, *cells)) for i in range(len(columns))]
    for row in (titles, *cells):
        parts = [
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(row, widths, columns, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _rich_table(cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    natural = [
        max(cell_len(text) for text in (columns[i].title, *(row[i] for row in cells))) for i in range(len(columns))
    ]
    console.width = max(console.width, natural[0])
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    shown = _fitting(natural, [column.spare for column in columns], console.width)
    for place, width in shown.items():
        column = columns[place]
        drawn.add_column(
            column.title.upper(),
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="fold" if place == 0 else "ellipsis",
            width=width,
        )
    for row in cells:
        drawn.add_row(*(Text(row[place], style=_style(columns[place], row[place])) for place in shown))
    console.print(drawn)


def _style(column: Column, text: str) -> str:
    colour = _colour(text) if column.title in STATE_COLUMNS else None
    return STYLES[colour] if colour else ""


def _fitting(natural: Sequence[int], spare: Sequence[bool], room: int) -> dict[int, int]:
    """Which columns are shown, and how wide, with two spaces between them.

    Those that can be spared go first, from the right, until every other has as much as it needs or can be read in; then
    the widest is cut until they fit. The first one is what is copied into the next command: it is never cut, and where
    nothing else helps the last ones are left out for it.
    """
    shown = dict(enumerate(natural))

    def needed(most: int) -> int:
        return sum(width if place == 0 else min(width, most) + 2 for place, width in shown.items())

    for place in [place for place, is_spare in enumerate(spare) if is_spare][::-1]:
        if needed(READABLE) > room:
            del shown[place]
    while len(shown) > 1 and needed(NARROWEST) > room:
        shown.popitem()
    while len(shown) > 1 and needed(max(natural)) > room:
        widest = max(list(shown)[1:], key=shown.__getitem__)
        shown[widest] -= 1
    return shown


def facts(pairs: Sequence[tuple[str, Any]]) -> None:
    """Facts about one thing, those that there are."""
    shown = [(name, cell(value)) for name, value in pairs if value not in (None, "", [], {}, ())]
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        print(f"  {name.ljust(width)}  {text}")


def cell(value: Any) -> str:
    """One value on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)) and all(isinstance(part, (str, int, float)) for part in value):
        return escaping.line(", ".join(str(part) for part in value)) or "-"
    if isinstance(value, (dict, list, tuple)):
        return escaping.line(escaping.as_json(value))
    return escaping.line(value)


def moment(text: Any) -> datetime | None:
    """A time of the API, or None if it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def age(text: Any, now: datetime | None = None) -> str:
    """How long ago, in the largest unit that says something."""
    then = moment(text)
    if then is None:
        return "-"
    return duration(((now or datetime.now(UTC)) - then).total_seconds())


def left(text: Any) -> str:
    """How long it is until then."""
    then = moment(text)
    return "-" if then is None else duration((then - datetime.now(UTC)).total_seconds())


def duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


BAR_SECONDS = 0.2
"""Seconds between two paintings."""
BAR_WIDTH = 24


def render_bar(percent: float | None, words: str, seconds: float, columns: int) -> str:
    """The line: `  ████████████░░░░░░░░░░░░  50 %  step 2/4 configure  12 s`, no wider than the terminal."""
    parts = [words, duration(seconds)]
    if percent is not None:
        share = min(100.0, max(0.0, percent)) / 100
        full = round(share * BAR_WIDTH)
        parts = [f"{'█' * full}{'░' * (BAR_WIDTH - full)}  {percent:3g} %", *parts]
    line = "  " + "  ".join(part for part in parts if part)
    return line if len(line) < columns else line[: max(0, columns - 2)] + "…"


def shows_bar(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class ProgressBar:
    """How far a task is, on one line of a terminal that is written over until the task ends. A thread repaints it, so
    that the time goes on while no event comes (`ticking`). `note` erases the line before it prints another one."""

    def __init__(self, stream: TextIO | None = None, *, ticking: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._begun = time.monotonic()
        self._percent: float | None = None
        self._words = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True) if ticking else None

    def __enter__(self) -> ProgressBar:
        painted.append(self)
        if self._ticker is not None:
            self._ticker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()
        self._write(ERASE)
        painted.remove(self)

    def update(self, percent: float | None, words: str) -> None:
        self._percent = self._percent if percent is None else percent
        self._words = words
        self.paint()

    def paint(self) -> None:
        columns = shutil.get_terminal_size().columns
        line = render_bar(self._percent, self._words, time.monotonic() - self._begun, columns)
        self._write(ERASE + line)

    def _tick(self) -> None:
        while not self._over.wait(BAR_SECONDS):
            self.paint()

    def _write(self, text: str) -> None:
        with self._lock:
            self._stream.write(text)
            self._stream.flush()
