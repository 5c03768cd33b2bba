// Where everything of a sequence diagram stands. Pure: steps and a width in, coordinates out; `Sequence.tsx` draws them.
//
//   caller        agent         hub         agent        person
//     │             │            │            │            │
//     ├─chiffon─────┼───────────▶│            │            │      one row a step, top to bottom
//     │             │            ├─coven─────▶█            │      a bar on a lane: the agent works
//     │             │            │◀╌╌╌╌╌╌╌╌╌╌╌█            │      dashed: progress, folded with its count
//
// The lanes stand in the order of the participants (`core/queries/sequence.py`), the hub in the middle: a step from an
// agent to a caller is two arrows, each in the protocol of its end. A text that is longer than its arrow begins at the
// hub and runs on over the lanes.

import type { Participant, Sequence, SequenceStep } from "../api/types";
import { duration } from "../ui/format";

export const ROW = 44;
export const HEAD = 68;
export const GUTTER = 66;
export const MARGIN = 16;
export const NARROWEST = 102;
export const WIDEST = 330;
/** Half of the widest box at the head of a lane. */
const BOX = 54;
/** Below this width (a phone) the times stand under their arrows, not in a column of their own. */
export const COMPACT = 620;
const LONGEST_TEXT = 460;
/** A pause longer than this between two steps is drawn as a break, with its length. */
export const BREAK_SECONDS = 2;

const CHARACTER = 6.7;
const DROP = 13;

export interface Lane {
  id: string;
  x: number;
  label: string;
  kind: Participant["kind"];
  protocol: string | null;
}

export interface Arrow {
  x1: number;
  x2: number;
  /** How far below the row's line: two arrows on one side of the hub do not cover each other. */
  drop: number;
  protocol: string | null;
}

export type Tone = "plain" | "progress" | "question" | "good" | "bad" | "control";

export interface Row {
  step: SequenceStep;
  y: number;
  /** Empty where it is the one above. */
  time: string;
  arrows: Arrow[];
  /** Where a step that stays with the hub is written down. */
  note: number | null;
  text: string;
  textX: number;
  anchor: "start" | "middle" | "end";
  tone: Tone;
  /** What the step is, at a glance; empty for the usual ones. */
  mark: string;
}

export interface Bar {
  key: string;
  agent: string;
  protocol: string | null;
  x: number;
  from: number;
  to: number;
  open: boolean;
}

export interface Break {
  y: number;
  text: string;
}

export interface Layout {
  compact: boolean;
  width: number;
  height: number;
  lanes: Lane[];
  rows: Row[];
  bars: Bar[];
  breaks: Break[];
}

const TONES: Record<string, Tone> = {
  progress: "progress",
  held_piece: "progress",
  log: "progress",
  asked: "question",
  answered: "question",
  paused: "question",
  resumed: "control",
  handover_asked: "control",
  handed_over: "control",
  retried: "control",
  completed: "good",
  failed: "bad",
  attempt_failed: "bad",
  error_reported: "bad",
  dead_lettered: "bad",
  cancelled: "bad",
};

const MARKS: Record<string, string> = {
  completed: "✓",
  failed: "✕",
  attempt_failed: "✕",
  error_reported: "!",
  dead_lettered: "✕",
  cancelled: "⊘",
  asked: "?",
  answered: "↩",
  paused: "‖",
  resumed: "▸",
  retried: "↻",
  handover_asked: "⇄",
  handed_over: "⇄",
};

const BEGINS = new Set(["assigned", "handed_over"]);
const ENDS = new Set(["completed", "failed", "cancelled", "attempt_failed", "handed_over", "dead_lettered"]);

export function layout(sequence: Sequence, available: number): Layout {
  const compact = available < COMPACT;
  const lanes = lanesOf(sequence.participants, available, compact);
  const width = (lanes.at(-1)?.x ?? 0) + (compact ? BOX - 10 : BOX) + (compact ? 4 : MARGIN);
  const at = new Map(lanes.map((lane) => [lane.id, lane]));
  const hub = lanes.find((lane) => lane.kind === "hub") ?? lanes[0];
  const begun = sequence.steps[0] ? Date.parse(sequence.steps[0].at) : 0;
  const rows: Row[] = [];
  const breaks: Break[] = [];
  let y = HEAD + ROW * 0.75;
  let before = begun;
  let shown = "";
  for (const step of sequence.steps) {
    const now = Date.parse(step.at);
    const pause = (now - before) / 1000;
    if (rows.length && pause >= BREAK_SECONDS) {
      breaks.push({ y: y - ROW * 0.1, text: duration(pause) });
      y += ROW * 0.6;
    }
    before = Math.max(now, Date.parse(step.until));
    const time = `+${duration((now - begun) / 1000)}`;
    const row = rowOf(step, y, at, hub, time === shown ? "" : time, width, compact);
    shown = time;
    rows.push(row);
    y += ROW + Math.max(0, ...row.arrows.map((arrow) => arrow.drop));
  }
  return { compact, width, height: y + MARGIN, lanes, rows, bars: barsOf(sequence, rows, at, y), breaks };
}

function lanesOf(participants: Participant[], available: number, compact: boolean): Lane[] {
  const between = Math.max(1, participants.length - 1);
  const [gutter, box, margin] = compact ? [4, BOX - 10, 4] : [GUTTER, BOX, MARGIN];
  const room = (available - gutter - margin - box * 2) / between;
  const spacing = Math.min(WIDEST, Math.max(NARROWEST, room));
  return participants.map((one, index) => ({
    id: one.id,
    x: Math.round(gutter + box + index * spacing),
    label: fit(one.id, Math.min(spacing, box * 2 + 40) - 28),
    kind: one.kind,
    protocol: one.protocol,
  }));
}

function rowOf(
  step: SequenceStep,
  y: number,
  at: Map<string, Lane>,
  hub: Lane | undefined,
  time: string,
  width: number,
  compact: boolean,
): Row {
  const source = at.get(step.source) ?? hub;
  const target = at.get(step.target) ?? hub;
  const tone = TONES[step.kind] ?? "plain";
  const mark = MARKS[step.kind] ?? "";
  const base = { step, y, time, tone, mark, anchor: "middle" as const };
  if (!source || !target || !hub || source === target) {
    const x = source?.x ?? hub?.x ?? 0;
    const text = fit(textOf(step), Math.min(300, width - 60));
    const half = noteWidth(text, mark) / 2;
    return { ...base, arrows: [], note: Math.max(half + 4, Math.min(width - half - 4, x)), text, textX: x };
  }
  const arrows: Arrow[] =
    source === hub || target === hub
      ? [{ x1: source.x, x2: target.x, drop: 0, protocol: protocolOf(step, source, target, hub) }]
      : [
          { x1: source.x, x2: hub.x, drop: 0, protocol: source.protocol ?? step.protocol },
          { x1: hub.x, x2: target.x, drop: sameSide(source, target, hub) ? DROP : 0, protocol: target.protocol ?? step.protocol },
        ];
  const first = arrows[0] as Arrow;
  const second = arrows[1] ?? first;
  // What an agent says stands over its own arrow, or over the longer one of two on one side.
  const under = first.drop !== second.drop && Math.abs(second.x2 - second.x1) > Math.abs(first.x2 - first.x1) ? second : first;
  const [low, high] = [Math.min(under.x1, under.x2), Math.max(under.x1, under.x2)];
  const whole = textOf(step);
  const needed = (whole.length + (mark ? 2 : 0)) * CHARACTER;
  if (needed <= high - low - 28) return { ...base, arrows, note: null, text: whole, textX: (low + high) / 2 };
  const isRight = low === hub.x;
  const edge = compact ? 4 : GUTTER;
  const longest = Math.max(LONGEST_TEXT, high - low - 28);
  const room = Math.min(longest, isRight ? width - 6 - (low + 16) : high - 16 - edge) - (mark ? CHARACTER * 2 : 0);
  return {
    ...base,
    arrows,
    note: null,
    text: fit(whole, room),
    textX: isRight ? low + 16 : high - 16,
    anchor: isRight ? "start" : "end",
  };
}

export const noteWidth = (text: string, mark: string): number => (text.length + (mark ? 2 : 0)) * 6.6 + 24;

const sameSide = (one: Lane, other: Lane, hub: Lane): boolean => Math.sign(one.x - hub.x) === Math.sign(other.x - hub.x);

function protocolOf(step: SequenceStep, source: Lane, target: Lane, hub: Lane): string | null {
  return (source === hub ? target.protocol : source.protocol) ?? step.protocol;
}

/** An agent's lane is marked from the step that gives it the task to the one that ends that: an outcome, a failed
 * attempt, or the step that gives the task to another agent. */
function barsOf(sequence: Sequence, rows: Row[], at: Map<string, Lane>, end: number): Bar[] {
  const bars: Bar[] = [];
  const open = new Map<string, { agent: string; y: number; n: number }>();
  for (const row of rows) {
    const { task, kind, target, n } = row.step;
    const begins = BEGINS.has(kind) && at.get(target)?.kind === "agent";
    const held = open.get(task);
    if (held && (ENDS.has(kind) || begins)) {
      bars.push(bar(at, task, held, row.y, false));
      open.delete(task);
    }
    if (begins) open.set(task, { agent: target, y: row.y, n });
  }
  for (const [task, held] of open) bars.push(bar(at, task, held, end - ROW / 2, sequence.running));
  return bars;
}

function bar(at: Map<string, Lane>, task: string, held: { agent: string; y: number; n: number }, to: number, open: boolean): Bar {
  const { agent, y, n } = held;
  const lane = at.get(agent);
  return { key: `${task}/${n}`, agent, protocol: lane?.protocol ?? null, x: lane?.x ?? 0, from: y, to: Math.max(to, y + 8), open };
}

export function textOf(step: SequenceStep): string {
  const kind = step.kind.replaceAll("_", " ");
  const times = step.count > 1 ? ` ×${step.count}` : "";
  // The arrow says to whom; the sentence need not.
  const rest = step.text.startsWith(`to ${step.target}`)
    ? step.text.slice(3 + step.target.length).replace(/^ · /, "")
    : step.text;
  const text = rest === "attempt 1" ? "" : rest;
  return text ? `${kind}${times} · ${text}` : `${kind}${times}`;
}

export function fit(text: string, room: number): string {
  const most = Math.max(3, Math.floor(room / CHARACTER));
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}
