import { expect, test } from "vitest";
import type { Participant, Sequence, SequenceStep } from "../src/api/types";
import { BREAK_SECONDS, fit, layout, textOf } from "../src/sequence/layout";
import { atEnd, kept } from "../src/sequence/place";

const PEOPLE: Participant[] = [
  { id: "planner", kind: "caller", protocol: "chiffon" },
  { id: "hub", kind: "hub", protocol: null },
  { id: "mux", kind: "agent", protocol: "coven" },
  { id: "editor", kind: "agent", protocol: "agentmsg" },
  { id: "person", kind: "person", protocol: null },
];

function step(
  n: number,
  kind: string,
  source: string,
  target: string,
  seconds: number,
  more: Partial<SequenceStep> = {},
): SequenceStep {
  const at = new Date(1_700_000_000_000 + seconds * 1000).toISOString();
  return { n, task: "t", seq: n, at, until: at, count: 1, kind, source, target, protocol: null, text: "", lost: [], ...more };
}

const drawn = (steps: SequenceStep[], running = false) =>
  layout({ trace_id: "x", task_id: "t", participants: PEOPLE, steps, running } satisfies Sequence, 900);

test("lanes stand in the order of the participants", () => {
  expect(drawn([]).lanes.map((lane) => lane.id)).toEqual(["planner", "hub", "mux", "editor", "person"]);
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
  expect(ended.bars).toEqual([
    { key: "t/2", agent: "mux", protocol: "coven", x: ended.lanes[2]?.x, from: ended.rows[1]?.y, to: ended.rows[2]?.y, open: false },
  ]);
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
  expect(fit("a long sentence about progress", 67)).toBe("a long se…");
  expect(textOf(step(1, "progress", "mux", "hub", 0, { count: 12, text: "50 %" }))).toBe("progress ×12 · 50 %");
});

test("a handoff ends one agent's bar and begins another's", () => {
  const { bars, rows } = drawn(
    [
      step(1, "assigned", "hub", "mux", 0),
      step(2, "handover_asked", "mux", "hub", 1),
      step(3, "handed_over", "hub", "editor", 1.5),
    ],
    true,
  );
  expect(bars.map(({ agent, from, open }) => ({ agent, from, open }))).toEqual([
    { agent: "mux", from: rows[0]?.y, open: false },
    { agent: "editor", from: rows[2]?.y, open: true },
  ]);
  expect(bars[0]?.to).toBe(rows[2]?.y);
});

test("a task that is given to another agent without a word of the first ends the first one's bar", () => {
  const { bars } = drawn([step(1, "assigned", "hub", "mux", 0), step(2, "assigned", "hub", "editor", 1)], true);
  expect(bars.map((bar) => [bar.agent, bar.open])).toEqual([
    ["mux", false],
    ["editor", true],
  ]);
});

test("tasks of one sequence have bars of their own", () => {
  const { bars } = drawn(
    [
      step(1, "assigned", "hub", "mux", 0),
      step(2, "assigned", "hub", "editor", 1, { task: "u" }),
      step(3, "completed", "editor", "mux", 2, { task: "u" }),
    ],
    true,
  );
  expect(bars.map((bar) => [bar.agent, bar.open])).toEqual([
    ["editor", false],
    ["mux", true],
  ]);
});

test.each([
  ["asked", "question", "?"],
  ["answered", "question", "↩"],
  ["retried", "control", "↻"],
  ["cancelled", "bad", "⊘"],
  ["attempt_failed", "bad", "✕"],
  ["completed", "good", "✓"],
  ["submitted", "plain", ""],
])("a step %s is drawn in the tone %s with the mark %j", (kind, tone, mark) => {
  const row = drawn([step(1, kind, "mux", "hub", 0)]).rows[0];
  expect([row?.tone, row?.mark]).toEqual([tone, mark]);
});

test("a question goes from the agent through the hub to the person", () => {
  const { rows, lanes } = drawn([step(1, "asked", "mux", "person", 0)]);
  expect(rows[0]?.arrows.map((arrow) => [arrow.x1, arrow.x2])).toEqual([
    [lanes[2]?.x, lanes[1]?.x],
    [lanes[1]?.x, lanes[4]?.x],
  ]);
});

test("a step that is added moves none that is there", () => {
  const steps = [step(1, "submitted", "planner", "hub", 0), step(2, "assigned", "hub", "mux", 0)];
  const before = drawn(steps, true).rows.map((row) => row.y);
  const after = drawn([...steps, step(3, "progress", "mux", "hub", 1)], true).rows.map((row) => row.y);
  expect(after.slice(0, 2)).toEqual(before);
});

test("the sentence of an assignment leaves out the agent that the arrow names", () => {
  expect(textOf(step(1, "assigned", "hub", "mux", 0, { text: "to mux · attempt 2" }))).toBe("assigned · attempt 2");
  expect(textOf(step(1, "assigned", "hub", "mux", 0, { text: "to mux · attempt 1" }))).toBe("assigned");
});

test("zooming keeps what is in the middle of the frame there", () => {
  expect(kept(100, 50, 1, 2)).toBe(250);
  expect(kept(0, 50, 2, 1)).toBe(0);
  expect(kept(kept(100, 50, 1, 1.5), 50, 1.5, 1)).toBeCloseTo(100);
});

test("a frame at its end follows, one that was scrolled up does not", () => {
  expect([atEnd(500, 400, 900), atEnd(480, 400, 900), atEnd(200, 400, 900)]).toEqual([true, true, false]);
});

test("a text that is longer than its arrow begins at the hub and stays in the drawing", () => {
  const { rows, lanes, width } = drawn([step(1, "progress", "mux", "hub", 0, { text: "x".repeat(400) })]);
  const row = rows[0];
  expect([row?.anchor, row?.textX]).toEqual(["start", (lanes[1]?.x ?? 0) + 16]);
  expect((row?.textX ?? 0) + (row?.text.length ?? 0) * 6.7).toBeLessThan(width);
});

test("a drawing of caller, hub and agent fits a phone", () => {
  const three = PEOPLE.filter((one) => ["mux", "hub", "planner"].includes(one.id));
  const { width, compact } = layout({ trace_id: "x", task_id: "t", participants: three, steps: [], running: false }, 358);
  expect(compact).toBe(true);
  expect(width).toBeLessThanOrEqual(358);
});

test("a time is written once where several steps have it", () => {
  const { rows } = drawn([step(1, "submitted", "planner", "hub", 0), step(2, "assigned", "hub", "mux", 0)]);
  expect(rows.map((row) => row.time)).toEqual(["+0 ms", ""]);
});
