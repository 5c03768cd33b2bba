import { expect, test } from "vitest";
import type { Participant, Sequence, SequenceStep } from "../src/api/types";
import { BREAK_SECONDS, fit, layout, textOf } from "../src/sequence/layout";

const PEOPLE: Participant[] = [
  { id: "mux", kind: "agent", protocol: "coven" },
  { id: "hub", kind: "hub", protocol: null },
  { id: "planner", kind: "caller", protocol: "chiffon" },
];

function step(n: number, kind: string, source: string, target: string, seconds: number, more: Partial<SequenceStep> = {}): SequenceStep {
  const at = new Date(1_700_000_000_000 + seconds * 1000).toISOString();
  return { n, task: "t", seq: n, at, until: at, count: 1, kind, source, target, protocol: null, text: "", lost: [], ...more };
}

const drawn = (steps: SequenceStep[], running = false) =>
  layout({ trace_id: "x", participants: PEOPLE, steps, running } satisfies Sequence, 900);

test("callers stand left of the hub and agents right of it", () => {
  expect(drawn([]).lanes.map((lane) => lane.id)).toEqual(["planner", "hub", "mux"]);
});

test("an outcome crosses the hub in the protocols of both ends", () => {
  const row = drawn([step(1, "completed", "mux", "planner", 0)]).rows[0];
  expect(row?.arrows.map((arrow) => arrow.protocol)).toEqual(["coven", "chiffon"]);
  expect(row?.arrows[0]?.x2).toBe(row?.arrows[1]?.x1);
});

test("a step that the hub takes by itself is a note on its lane", () => {
  const { rows, lanes } = drawn([step(1, "attempt_failed", "hub", "hub", 0)]);
  expect(rows[0]?.arrows).toEqual([]);
  expect(rows[0]?.note).toBe(lanes[1]?.x);
});

test("a long pause is drawn as a break with its length", () => {
  const { breaks } = drawn([step(1, "submitted", "planner", "hub", 0), step(2, "assigned", "hub", "mux", BREAK_SECONDS + 1)]);
  expect(breaks.map((pause) => pause.text)).toEqual(["3.0 s"]);
});

test("an agent's lane is marked while it has the task, and stays open while the task runs", () => {
  const begun = [step(1, "submitted", "planner", "hub", 0), step(2, "assigned", "hub", "mux", 0)];
  expect(drawn(begun, true).bars.map((bar) => bar.open)).toEqual([true]);
  const ended = drawn([...begun, step(3, "completed", "mux", "planner", 1)]);
  expect(ended.bars).toEqual([{ x: ended.lanes[2]?.x, from: ended.rows[1]?.y, to: ended.rows[2]?.y, open: false }]);
});

test("a second attempt begins a second bar", () => {
  const { bars } = drawn([
    step(1, "assigned", "hub", "mux", 0),
    step(2, "attempt_failed", "hub", "hub", 1),
    step(3, "assigned", "hub", "mux", 2),
    step(4, "completed", "mux", "planner", 3),
  ]);
  expect(bars).toHaveLength(2);
});

test("a step of a participant that is not listed is drawn at the hub", () => {
  expect(drawn([step(1, "progress", "ghost", "hub", 0)]).rows[0]?.note).not.toBeNull();
});

test("text is cut to the room it has", () => {
  expect(fit("a long sentence about progress", 65)).toBe("a long se…");
  expect(textOf(step(1, "progress", "mux", "hub", 0, { count: 12, text: "50 %" }))).toBe("progress ×12 · 50 %");
});
