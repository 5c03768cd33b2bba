// Where everything of a sequence diagram stands. Pure: steps and a width in, coordinates out; `Sequence.tsx` draws them.
//
//   caller        hub         agent        person
//     │            │            │            │
//     ├─chiffon───▶│            │            │      one row a step, top to bottom
//     │            ├─coven─────▶█            │      a bar on a lane: the agent works
//     │            │◀╌╌╌╌╌╌╌╌╌╌╌█            │      dashed: progress, folded with its count
//
// The hub stands between all others, so a step from an agent to a caller is two arrows, each in the protocol of its end.

import type { Participant, Sequence, SequenceStep } from "../api/types";
import { duration } from "../ui/format";

export const ROW = 42;
export const HEAD = 68;
export const GUTTER = 70;
export const MARGIN = 20;
export const NARROWEST = 128;
export const WIDEST = 320;
/** Half of the widest box at the head of a lane. */
const BOX = 58;
/** A pause longer than this between two steps is drawn as a break, with its length. */
export const BREAK_SECONDS = 2;

const ORDER = { caller: 0, hub: 1, agent: 2, person: 3 } as const;
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
  time: string;
  arrows: Arrow[];
  /** Where a step that stays with the hub is written down. */
  note: number | null;
  text: string;
  textX: number;
  tone: Tone;
  /** What the step is, at a glance; empty for the usual ones. */
  mark: string;
}

export interface Bar {
  key: string;
  agent: string;
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
  const lanes = lanesOf(sequence.participants, available);
  const at = new Map(lanes.map((lane) => [lane.id, lane]));
  const hub = lanes.find((lane) => lane.kind === "hub") ?? lanes[0];
  const begun = sequence.steps[0] ? Date.parse(sequence.steps[0].at) : 0;
  const rows: Row[] = [];
  const breaks: Break[] = [];
  let y = HEAD + ROW * 0.75;
  let before = begun;
  for (const step of sequence.steps) {
    const now = Date.parse(step.at);
    const pause = (now - before) / 1000;
    if (rows.length && pause >= BREAK_SECONDS) {
      breaks.push({ y: y - ROW * 0.1, text: duration(pause) });
      y += ROW * 0.6;
    }
    before = Math.max(now, Date.parse(step.until));
    const row = rowOf(step, y, at, hub, now - begun);
    rows.push(row);
    y += ROW + Math.max(0, ...row.arrows.map((arrow) => arrow.drop));
  }
  const last = lanes.at(-1);
  return {
    width: (last?.x ?? 0) + BOX + MARGIN,
    height: y + MARGIN,
    lanes,
    rows,
    bars: barsOf(sequence, rows, at, y),
    breaks,
  };
}

function lanesOf(participants: Participant[], available: number): Lane[] {
  const sorted = [...participants].sort((one, other) => ORDER[one.kind] - ORDER[other.kind]);
  const between = Math.max(1, sorted.length - 1);
  const room = (available - GUTTER - MARGIN - BOX * 2) / between;
  const spacing = Math.min(WIDEST, Math.max(NARROWEST, room));
  return sorted.map((one, index) => ({
    id: one.id,
    x: Math.round(GUTTER + BOX + index * spacing),
    label: fit(one.id, Math.min(spacing, BOX * 2) - 22),
    kind: one.kind,
    protocol: one.protocol,
  }));
}

function rowOf(step: SequenceStep, y: number, at: Map<string, Lane>, hub: Lane | undefined, since: number): Row {
  const source = at.get(step.source) ?? hub;
  const target = at.get(step.target) ?? hub;
  const tone = TONES[step.kind] ?? "plain";
  const mark = MARKS[step.kind] ?? "";
  const time = `+${duration(since / 1000)}`;
  if (!source || !target || !hub || source === target) {
    const x = source?.x ?? hub?.x ?? 0;
    return { step, y, time, arrows: [], note: x, text: fit(textOf(step), 240), textX: x, tone, mark };
  }
  const arrows: Arrow[] =
    source === hub || target === hub
      ? [{ x1: source.x, x2: target.x, drop: 0, protocol: protocolOf(step, source, target, hub) }]
      : [
          { x1: source.x, x2: hub.x, drop: 0, protocol: source.protocol ?? step.protocol },
          { x1: hub.x, x2: target.x, drop: sameSide(source, target, hub) ? DROP : 0, protocol: target.protocol ?? step.protocol },
        ];
  const widest = arrows.reduce((one, other) => (Math.abs(other.x2 - other.x1) > Math.abs(one.x2 - one.x1) ? other : one));
  const room = Math.abs(widest.x2 - widest.x1) - (mark ? 44 : 24);
  const textX = (widest.x1 + widest.x2) / 2;
  return { step, y, time, arrows, note: null, text: fit(textOf(step), Math.max(room, NARROWEST - 30)), textX, tone, mark };
}

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
  return { key: `${task}/${n}`, agent, x: at.get(agent)?.x ?? 0, from: y, to: Math.max(to, y + 8), open };
}

export function textOf(step: SequenceStep): string {
  const kind = step.kind.replaceAll("_", " ");
  const times = step.count > 1 ? ` ×${step.count}` : "";
  // The arrow says to whom; the sentence need not.
  const text = step.text.startsWith(`to ${step.target}`)
    ? step.text.slice(3 + step.target.length).replace(/^ · /, "")
    : step.text;
  return text ? `${kind}${times} · ${text}` : `${kind}${times}`;
}

export function fit(text: string, room: number): string {
  const most = Math.max(3, Math.floor(room / CHARACTER));
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}
