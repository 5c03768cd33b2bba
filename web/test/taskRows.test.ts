import { expect, test } from "vitest";
import type { Changes, TaskRow } from "../src/api/types";
import { MOST_ROWS, type Rows, withChanges, withNewest, withOlder } from "../src/pages/taskRows";

/** Task number 9 is newer than number 8. */
const row = (number: number, more: Partial<TaskRow> = {}): TaskRow => ({
  id: `t${number}`,
  type: "work",
  name: null,
  status: "running",
  waiting: null,
  agent: null,
  protocol_in: "chiffon",
  protocol_out: null,
  progress: 0,
  created_at: `2026-11-18T10:00:${String(number).padStart(2, "0")}Z`,
  updated_at: "",
  ...more,
});
const rows = (...numbers: number[]): TaskRow[] => numbers.map((number) => row(number));
const ids = (known: Rows): string[] => known.rows.map((one) => one.id);
const changes = (tasks: TaskRow[], more = false): Changes => ({
  n: 1,
  counts: {},
  tasks,
  more,
  agents: [],
  questions: { open: 0, changed: [] },
  deadletters: 0,
  wire: [],
  skipped: 0,
});

test("an older page goes behind the rows, each task once", () => {
  const known = withOlder({ rows: rows(9, 8), next: "a" }, { tasks: rows(8, 7), next: "b" });
  expect([ids(known), known.next]).toEqual([["t9", "t8", "t7"], "b"]);
});

test("the newest page comes before the rows that a person scrolled to, and the end of the list stays known", () => {
  const known = withNewest({ rows: rows(6, 5, 4, 3, 2), next: "behind t2" }, { tasks: rows(8, 7, 6), next: "behind t6" }, true);
  expect([ids(known), known.next]).toEqual([["t8", "t7", "t6", "t5", "t4", "t3", "t2"], "behind t2"]);
});

test("a list that nobody scrolled shows the newest page only, so it does not grow over a day", () => {
  const known = withNewest({ rows: rows(6, 5, 4, 3, 2), next: "behind t2" }, { tasks: rows(8, 7, 6), next: "behind t6" }, false);
  expect([ids(known), known.next]).toEqual([["t8", "t7", "t6"], "behind t6"]);
});

test("a task that left the filter leaves the newest page, too", () => {
  expect(ids(withNewest({ rows: rows(9, 8, 7), next: null }, { tasks: rows(9, 7), next: null }, true))).toEqual(["t9", "t7"]);
  expect(ids(withNewest({ rows: rows(9), next: null }, { tasks: [], next: null }, true))).toEqual([]);
});

test("a row keeps only what it shows", () => {
  const whole = { ...row(1), input: { large: "x".repeat(1000) } };
  expect(withNewest({ rows: [], next: null }, { tasks: [whole], next: null }, false).rows).toEqual([row(1)]);
});

test("a list ends at the most rows that a page holds", () => {
  const many = Array.from({ length: MOST_ROWS - 1 }, (_, index) => row(0, { id: `old${index}` }));
  const known = withOlder({ rows: many, next: "a" }, { tasks: rows(3, 2, 1), next: "b" });
  expect([known.rows.length, known.next]).toEqual([MOST_ROWS, null]);
});

test("the stream changes rows in place and says whether there are others", () => {
  const done = row(8, { status: "completed" });
  expect(withChanges(rows(9, 8), changes([done]))).toEqual({ rows: [row(9), done], others: false });
  expect(withChanges(rows(9, 8), changes([done, row(10)])).others).toBe(true);
  const same = rows(9);
  expect(withChanges(same, changes([], true))).toEqual({ rows: same, others: true });
});
