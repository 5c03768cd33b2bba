"""The sequence of a task (`GET /api/v1/tasks/{id}/sequence`) as lines of a terminal and as a standalone SVG.

    planner          hub           mux-1
    chiffon           ┃            coven
       ├─ submitted ─▶┃              │       one row a step, from top to bottom
       │              ┠─ assigned ──▶█       a bar on a lane: the agent works
       │              ┃◀╌ progress ╌╌█  50 %

Both are pure: the model and a width in, text out. The dashboard draws the same model (`web/src/sequence/layout.ts`),
with the same colours for the protocols, and its lanes in the same order: that of the model's participants. The hub
stands between all others, so a step from an agent to its caller is two arrows, each in the protocol of its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, NamedTuple

from dragoman.cli.escaping import line
from dragoman.cli.printing import duration, moment

Model = Mapping[str, Any]
Step = Mapping[str, Any]

PAUSE = 2.0
"""Seconds between two steps from which on the pause is drawn."""

TONES: Mapping[str, str] = {
    "progress": "progress",
    "held_piece": "progress",
    "log": "progress",
    "asked": "question",
    "answered": "question",
    "paused": "question",
    "resumed": "control",
    "handover_asked": "control",
    "handed_over": "control",
    "retried": "control",
    "completed": "good",
    "failed": "bad",
    "attempt_failed": "bad",
    "error_reported": "bad",
    "dead_lettered": "bad",
    "cancelled": "bad",
}
BEGINS = frozenset({"assigned", "handed_over"})
ENDS = frozenset({"completed", "failed", "cancelled", "attempt_failed", "handed_over", "dead_lettered"})


class Lane(NamedTuple):
    place: int
    id: str
    kind: str
    protocol: str | None


class Arrow(NamedTuple):
    source: Lane
    target: Lane
    protocol: str | None


class Row(NamedTuple):
    """A step with where it is drawn. No arrows: it is a note on the lane `at`. `before` is the pause before it."""

    step: Step
    since: float
    before: float
    at: Lane
    arrows: tuple[Arrow, ...]
    tone: str
    words: str
    text: str


def lanes_of(model: Model) -> tuple[Lane, ...]:
    return tuple(Lane(n, one["id"], one["kind"], one.get("protocol")) for n, one in enumerate(model["participants"]))


def rows_of(model: Model, lanes: Sequence[Lane]) -> Iterator[Row]:
    by_id = {lane.id: lane for lane in lanes}
    hub = next(lane for lane in lanes if lane.kind == "hub")
    many = len({step["task"] for step in model["steps"]}) > 1
    begun, ends = None, list[datetime]()
    for step in model["steps"]:
        at, until = moment(step["at"]), moment(step["until"])
        assert at is not None
        assert until is not None
        begun = begun or at
        last = max((end for end in ends if end <= at), default=at)
        source, target = by_id.get(step["source"], hub), by_id.get(step["target"], hub)
        protocol = step.get("protocol")
        if source is target:
            arrows: tuple[Arrow, ...] = ()
        elif hub in (source, target):
            spoken = target.protocol if source is hub else source.protocol
            arrows = (Arrow(source, target, spoken or protocol),)
        else:
            arrows = (
                Arrow(source, hub, source.protocol or protocol),
                Arrow(hub, target, target.protocol or protocol),
            )
        times = f" ×{step['count']}" if step["count"] > 1 else ""
        parts = [f"…{step['task'][-4:]}"] if many and step["kind"] == "submitted" else []
        parts += [line(step["text"])] if step.get("text") else []
        yield Row(
            step, (at - begun).total_seconds(), (at - last).total_seconds(), source, arrows,
            TONES.get(step["kind"], "plain"), line(step["kind"].replace("_", " ")) + times, " · ".join(parts),
        )  # fmt: skip
        ends += [at, until]


def lost_in(step: Step) -> str:
    return ", ".join(line(str(one["feature"]).replace("_", " ")) for one in step.get("lost") or ())


def held_after(open: Mapping[str, str], step: Step, agents: frozenset[str]) -> dict[str, str]:
    """Which agent works at which task, after a step."""
    held = dict(open)
    if step["kind"] in ENDS:
        held.pop(step["task"], None)
    if step["kind"] in BEGINS and step["target"] in agents:
        held[step["task"]] = step["target"]
    return held


# -- in a terminal -----------------------------------------------------------------------------------------------------

GUTTER = 10
NARROWEST, WIDEST = 12, 26
LABEL = 5
"""Columns of an arrow that its words leave free: a head, a stroke at each end, two spaces."""
REMARKS = 30
"""Columns for what a step says, right of the lanes; where the terminal is narrow they shrink to nothing."""

PROTOCOLS: Mapping[str | None, int] = {"chiffon": 34, "agentmsg": 32, "forge": 33, "a2acp": 35, "coven": 36, "api": 37}
TONE_COLOURS = {"good": 32, "bad": 31, "question": 33}
DIM = 90
STROKES = {"progress": "╌", "question": "┄"}


class Canvas:
    """One line: characters, and the colour of each."""

    def __init__(self, width: int) -> None:
        self._characters = [" "] * width
        self._colours: list[int | None] = [None] * width

    def put(self, column: int, text: str, colour: int | None = None) -> None:
        for offset, character in enumerate(text):
            if 0 <= column + offset < len(self._characters):
                self._characters[column + offset] = character
                self._colours[column + offset] = colour

    def shown(self, colours: bool) -> str:
        if not colours:
            return "".join(self._characters).rstrip()
        out, now = [], None
        for character, colour in zip("".join(self._characters).rstrip(), self._colours, strict=False):
            if colour != now and character != " ":
                out.append(f"\x1b[{0 if colour is None else colour}m")
                now = colour
            out.append(character)
        return "".join(out) + ("\x1b[0m" if now is not None else "")


def in_terminal(model: Model, width: int, *, colours: bool) -> list[str] | None:
    """The lines of the diagram; None where so many lanes do not fit."""
    lanes = lanes_of(model)
    room = (width - GUTTER - REMARKS) // len(lanes)
    if room < NARROWEST:
        room = (width - GUTTER) // len(lanes)
    if room < NARROWEST:
        return None
    spacing = min(WIDEST, room)
    centre = {lane.id: GUTTER + spacing // 2 + lane.place * spacing for lane in lanes}
    remarks = GUTTER + spacing * len(lanes)
    agents = frozenset(lane.id for lane in lanes if lane.kind == "agent")
    drawn: list[Canvas] = []

    def canvas(held: Mapping[str, str]) -> Canvas:
        made = Canvas(width)
        for lane in lanes:
            if lane.id in held.values():
                made.put(centre[lane.id], "█", PROTOCOLS.get(lane.protocol))
            else:
                made.put(centre[lane.id], "┃" if lane.kind == "hub" else "│", DIM)
        drawn.append(made)
        return made

    head, under = Canvas(width), Canvas(width)
    for lane in lanes:
        name = _cut(line(lane.id), spacing - 2)
        head.put(centre[lane.id] - len(name) // 2, name, 1)
        spoken = "" if lane.kind == "hub" else lane.protocol or lane.kind
        under.put(centre[lane.id] - len(spoken) // 2, spoken, PROTOCOLS.get(lane.protocol, DIM))
    drawn += [head, under]
    held: dict[str, str] = {}
    for row in rows_of(model, lanes):
        if row.before >= PAUSE:
            canvas(held).put(0, f"{duration(row.before).rjust(GUTTER - 2)} ⋮", DIM)
        after = held_after(held, row.step, agents)
        both = held | after
        tone = TONE_COLOURS.get(row.tone)
        made = canvas(both)
        made.put(0, f"+{row.since:.3f}".rjust(GUTTER - 2), DIM)
        lost = lost_in(row.step)
        words = row.words
        remark = " · ".join(part for part in (row.text, f"◇ loses {lost}" if lost else "") if part)
        if remark and width - remarks < REMARKS // 2:  # on the arrow, as far as it fits
            words, remark = f"{words} · {remark}", ""
        if not row.arrows:
            at = centre[row.at.id]
            made.put(at, "◆", tone)
            room = max(spacing - 3, (remarks if row.at is lanes[-1] else at + spacing) - at - 3)
            made.put(at + 2, _cut(words, room), tone)
        lengths = [abs(centre[arrow.source.id] - centre[arrow.target.id]) for arrow in row.arrows]
        fits = not lengths or len(words) <= lengths[0] - LABEL
        labelled = 0 if fits else lengths.index(max(lengths))
        for index, arrow in enumerate(row.arrows):
            source, target = centre[arrow.source.id], centre[arrow.target.id]
            if index and (source < target) != (centre[row.arrows[0].source.id] < centre[row.arrows[0].target.id]):
                made = canvas(both)  # back on the same side of the hub: an arrow of its own
            _arrow(made, source, target, words if index == labelled else "", row.tone, arrow.protocol, tone)
        made.put(remarks, _cut(remark, width - remarks), tone or DIM)
        held = after
    return [one.shown(colours) for one in drawn]


def _arrow(
    canvas: Canvas, source: int, target: int, words: str, tone: str, protocol: str | None, colour: int | None
) -> None:
    left, right = min(source, target) + 1, max(source, target)
    stroke, own = STROKES.get(tone, "─"), PROTOCOLS.get(protocol, DIM)
    canvas.put(left, stroke * (right - left), own)
    canvas.put(*((right - 1, "▶") if source < target else (left, "◀")), own)
    label = _cut(words, right - left + 1 - LABEL)
    if label:
        canvas.put(left + (right - left - len(label) - 2) // 2, f" {label} ", colour)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1].rstrip()}…" if room > 1 else ""


# -- as an SVG ---------------------------------------------------------------------------------------------------------

ROW, HEAD, TIMES, MARGIN, SPACING, CHARACTER, DROP = 40, 64, 76, 28, 200, 6.5, 12
NAMES = ("chiffon", "agentmsg", "forge", "a2acp", "coven", "api")

LIGHT = (
    "--surface:#fff;--surface-2:#f6f7f9;--line:#dfe3ea;--line-strong:#c4cad6;--ink:#171b26;--ink-2:#454d60;"
    "--ink-3:#626b7f;--ok:#0f7a4d;--run:#2f5be0;--run-soft:#e8eefe;--wait:#8f5a00;--wait-soft:#fdf0d8;--bad:#c02637;"
    "--bad-soft:#fde8ea;--p-chiffon:#2f5be0;--p-agentmsg:#0f7a4d;--p-forge:#a85a00;--p-a2acp:#a52a6a;"
    "--p-coven:#6d3bd1;--p-api:#4b5568"
)
DARK = (
    "--surface:#12151d;--surface-2:#181c26;--line:#2a303e;--line-strong:#3d4557;--ink:#eef1f7;--ink-2:#bcc4d4;"
    "--ink-3:#98a1b5;--ok:#4fd69c;--run:#8aadff;--run-soft:#1d2a4d;--wait:#f5b64c;--wait-soft:#3a2c12;--bad:#ff8591;"
    "--bad-soft:#401c23;--p-chiffon:#8aadff;--p-agentmsg:#4fd69c;--p-forge:#f5b64c;--p-a2acp:#f08bbd;"
    "--p-coven:#bda0ff;--p-api:#b3bccd"
)
STYLE = (
    f"svg{{{LIGHT};font:12px ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif}}"
    f"@media(prefers-color-scheme:dark){{svg{{{DARK}}}}}"
    + "".join(f".p-{name}{{--p:var(--p-{name})}}" for name in NAMES)
    + ".page{fill:var(--surface)}.head{fill:var(--p,var(--ink-3))}"
    ".lane line{stroke:var(--line-strong);stroke-dasharray:2 5}"
    ".lane rect{fill:var(--surface);stroke:var(--p,var(--line-strong));stroke-width:1.5}"
    ".lane text{fill:var(--ink);font-weight:620}"
    ".lane .spoken{fill:var(--p,var(--ink-3));font-weight:500;font-size:11px}"
    ".hub rect{fill:var(--ink);stroke:var(--ink)}.hub text{fill:var(--surface)}"
    ".hub line{stroke:var(--ink-3);stroke-dasharray:none;stroke-width:2}"
    ".person rect{fill:var(--wait-soft);stroke:var(--wait)}"
    ".bar{fill:var(--run-soft);stroke:var(--run)}"
    ".arrow{stroke:var(--p,var(--ink-3));stroke-width:2}"
    ".progress .arrow{stroke-dasharray:5 4;stroke-width:1.5}"
    ".question .arrow{stroke-dasharray:1 4;stroke-linecap:round;stroke-width:2.5}"
    ".say{fill:var(--ink-2);paint-order:stroke;stroke:var(--surface);stroke-width:4px;stroke-linejoin:round}"
    ".good .say{fill:var(--ok);font-weight:600}.bad .say{fill:var(--bad);font-weight:600}"
    ".question .say{fill:var(--wait);font-weight:600}"
    ".time{fill:var(--ink-3);font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px}"
    ".note rect{fill:var(--surface-2);stroke:var(--line-strong)}.note text{fill:var(--ink-2)}"
    ".bad .note rect{fill:var(--bad-soft);stroke:var(--bad)}.bad .note text{fill:var(--bad)}"
    ".break line{stroke:var(--line);stroke-dasharray:6 6}.break text{fill:var(--ink-3);font-size:11px}"
    ".lost path{fill:var(--wait);stroke:var(--surface);stroke-width:1.5}"
    ".lost text{fill:var(--surface);font-size:9px;font-weight:700}"
)


def as_svg(model: Model) -> str:
    """A standalone SVG, light or dark as its reader has it; it loads nothing."""
    lanes = lanes_of(model)
    x = {lane.id: TIMES + MARGIN + SPACING * 2 // 5 + lane.place * SPACING for lane in lanes}
    width = x[lanes[-1].id] + SPACING * 2 // 5 + MARGIN
    agents = frozenset(lane.id for lane in lanes if lane.kind == "agent")
    y, body, bars = HEAD + ROW * 3 // 4, list[str](), list[str]()
    held: dict[str, str] = {}
    since: dict[str, int] = {}
    for row in rows_of(model, lanes):
        if row.before >= PAUSE:
            at = y - ROW // 10
            body.append(
                f'<g class="break"><line x1="8" x2="{width - 8}" y1="{at}" y2="{at}"/>'
                f'<text x="12" y="{at + 14}">{duration(row.before)} later</text></g>'
            )
            y += ROW * 3 // 5
        after = held_after(held, row.step, agents)
        for task, agent in held.items():
            if after.get(task) != agent:
                bars.append(_bar(x[agent], since.pop(task), y))
        since |= {task: y for task, agent in after.items() if held.get(task) != agent}
        held = after
        body.append(_svg_row(row, y, x, lanes))
        y += ROW + (DROP if _is_back(row, x) else 0)
    bars += [_bar(x[agent], since[task], y - ROW // 2) for task, agent in held.items()]
    height = y + MARGIN
    heads = "".join(
        f'<marker id="head-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path d="M0 1 9 5 0 9z" class="head p-{name}"/></marker>'
        for name in (*NAMES, "none")
    )
    title = f"{len(model['steps'])} steps between {', '.join(lane.id for lane in lanes)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{_text(title)}">',
        f"<style>{STYLE}</style><defs>{heads}</defs>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        *(_svg_lane(lane, x[lane.id], height) for lane in lanes),
        *bars,
        *body,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _svg_lane(lane: Lane, x: int, height: int) -> str:
    label = _cut(lane.id, int((SPACING - 12) / CHARACTER))
    wide = max(72, round(len(label) * 7.4) + 24)
    spoken = "" if lane.kind == "hub" else lane.protocol or lane.kind
    colour = lane.protocol if lane.protocol in NAMES else "none"
    return (
        f'<g class="lane {lane.kind} p-{colour}">'
        f'<line x1="{x}" x2="{x}" y1="{HEAD - 6}" y2="{height - 8}"/>'
        f'<rect x="{x - wide / 2:g}" y="10" width="{wide}" height="30" rx="8"/>'
        f'<text x="{x}" y="30" text-anchor="middle">{_text(label)}</text>'
        f'<text class="spoken" x="{x}" y="54" text-anchor="middle">{_text(spoken)}</text></g>'
    )


def _bar(x: int, begun: int, ended: int) -> str:
    return f'<rect class="bar" x="{x - 5}" y="{begun}" width="10" height="{max(8, ended - begun)}" rx="4"/>'


def _is_back(row: Row, x: Mapping[str, int]) -> bool:
    """Whether its second arrow goes back on the side of the hub from which the first one came."""
    if len(row.arrows) < 2:
        return False
    first, second = row.arrows
    return (x[first.source.id] < x[first.target.id]) != (x[second.source.id] < x[second.target.id])


def _svg_row(row: Row, y: int, x: Mapping[str, int], lanes: Sequence[Lane]) -> str:
    step = row.step
    whole = f"{row.words} · {row.text}" if row.text else row.words
    hover = f"{step['at']} {step['source']} → {step['target']}: {whole}"
    out = [
        f'<g class="{row.tone}"><title>{_text(hover)}</title>',
        f'<text class="time" x="12" y="{y + 4}">+{_text(duration(row.since))}</text>',
    ]
    if not row.arrows:
        words, at = _cut(whole, 36), x[row.at.id]
        wide = len(words) * CHARACTER + 24
        out.append(
            f'<g class="note"><rect x="{at - wide / 2:g}" y="{y - 14}" width="{wide:g}" height="24" rx="12"/>'
            f'<text x="{at}" y="{y + 3}" text-anchor="middle">{_text(words)}</text></g></g>'
        )
        return "".join(out)
    for index, arrow in enumerate(row.arrows):
        source, target = x[arrow.source.id], x[arrow.target.id]
        towards, drop = (6 if source < target else -6), DROP if index and _is_back(row, x) else 0
        name = arrow.protocol if arrow.protocol in NAMES else "none"
        out.append(
            f'<line class="arrow p-{name}" x1="{source + towards}" x2="{target - towards}" y1="{y + drop}"'
            f' y2="{y + drop}" marker-end="url(#head-{name})"/>'
        )
    longest = max(row.arrows, key=lambda arrow: abs(x[arrow.source.id] - x[arrow.target.id]))
    ends = x[longest.source.id], x[longest.target.id]
    middle = (ends[0] + ends[1]) // 2
    words = _cut(whole, int((abs(ends[0] - ends[1]) - 20) / CHARACTER))
    out.append(f'<text class="say" x="{middle}" y="{y - 8}" text-anchor="middle">{_text(words)}</text>')
    if lost := lost_in(step):
        at, count = x[row.arrows[0].target.id] if len(row.arrows) == 2 else middle, len(step["lost"])
        out.append(
            f'<g class="lost" transform="translate({at} {y + 1})"><title>Lost in translation: {_text(lost)}</title>'
            f'<path d="M0-8 8 0 0 8-8 0z"/><text y="4" text-anchor="middle">{count}</text></g>'
        )
    out.append("</g>")
    return "".join(out)


def _text(text: str) -> str:
    """Anything that an agent wrote, as text of an XML document: characters that XML forbids are left out."""
    return escape("".join(one for one in text if one >= " " and not "\ud800" <= one <= "\udfff" and one < "\ufffe"))
