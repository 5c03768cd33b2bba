import { expect, test } from "vitest";
import { address } from "../src/api/client";
import { ago, bytes, duration, formOf, inWords, plural, pretty, readable, shortDuration, shortId } from "../src/ui/format";
import { exampleOf, fieldsOf } from "../src/ui/schema";
import { indexOf, move } from "../src/ui/selection";

test.each([
  [0.0001, "0 ms"],
  [0.25, "250 ms"],
  [4.25, "4.3 s"],
  [59, "59 s"],
  [125, "2 min 5 s"],
  [7200, "2 h"],
  [200_000, "2 d"],
])("%d seconds read %s", (seconds, text) => {
  expect(duration(seconds)).toBe(text);
});

test("how long ago something was", () => {
  const now = Date.parse("2026-11-18T12:00:00Z");
  expect(ago("2026-11-18T11:59:59.500Z", now)).toBe("just now");
  expect(ago("2026-11-18T11:48:00Z", now)).toBe("12 min ago");
  expect(ago("2026-11-15T12:00:00Z", now)).toBe("3 d ago");
});

test("sizes, counts and ids are short", () => {
  expect([bytes(12), bytes(4200), bytes(3_400_000)]).toEqual(["12 B", "4.2 kB", "3.4 MB"]);
  expect([plural(1, "task"), plural(1200, "task")]).toEqual(["1 task", "1,200 tasks"]);
  expect(shortId("01a1ef24-6af5-7015-8fdb-c771b4cfe486")).toBe("…cfe486");
});

test("text that is JSON is indented, other text stays as it is", () => {
  expect(pretty('{"a":1}')).toBe('{\n  "a": 1\n}');
  expect(pretty("plain <b>text</b>")).toBe("plain <b>text</b>");
});

test("an address leaves out filters that are empty", () => {
  expect(address("/tasks", { status: "failed", q: "", agent: null, limit: 5 })).toBe("/api/v1/tasks?status=failed&limit=5");
});

test("a form has the fields of the schema, and begins with what it needs", () => {
  const schema = {
    type: "object",
    required: ["host", "level"],
    properties: {
      host: { type: "string", description: "Where" },
      level: { enum: ["low", "high"] },
      count: { anyOf: [{ type: "integer" }, { type: "null" }] },
      dry: { type: "boolean", default: true },
    },
  };
  expect(fieldsOf(schema).map((field) => [field.name, field.type, field.required])).toEqual([
    ["host", "string", true],
    ["level", "any", true],
    ["count", "integer", false],
    ["dry", "boolean", false],
  ]);
  expect(exampleOf(schema)).toEqual({ host: "", level: "low", dry: true });
  expect(exampleOf(null)).toEqual({});
});

test("j and k stay inside the list", () => {
  expect([move(-1, 1, 3), move(2, 1, 3), move(0, -1, 3), move(0, 1, 0)]).toEqual([0, 2, 0, -1]);
});

test("the current row is the same one wherever it moves, and the one in its place when it is gone", () => {
  const at = { id: "b", index: 1 };
  expect(["abc", "xabc", "ac", "a", ""].map((ids) => indexOf(at, [...ids]))).toEqual([1, 2, 1, 0, -1]);
  expect(indexOf(null, ["a"])).toBe(-1);
});

test("instants in a sentence are times of today, or have their day", () => {
  const now = new Date(2026, 10, 18, 20, 0, 0).getTime();
  const today = new Date(2026, 10, 18, 9, 14, 2).toISOString();
  const before = new Date(2026, 10, 3, 9, 14, 2).toISOString();
  expect(readable(`It waits since ${today}.`, now)).toBe("It waits since 09:14:02.");
  expect(readable(`until ${before}`, now)).toBe("until 3 Nov 09:14:02");
  expect(readable("no time in 2026-11-18 here", now)).toBe("no time in 2026-11-18 here");
});

test.each([
  [59.6, "1 min"],
  [3599.7, "1 h"],
  [86_399, "1 d"],
  [23 * 3600 + 59 * 60 + 40, "1 d"],
  [86_340 - 20, "23 h 59 min"],
])("%d seconds are never sixty of the smaller unit: %s", (seconds, text) => {
  expect(duration(seconds)).toBe(text);
});

test("an axis says a time in one unit", () => {
  expect([shortDuration(2.5), shortDuration(200), shortDuration(7200)]).toEqual(["2.5 s", "3.3 min", "2 h"]);
});

test("a sentence of the hub says many seconds as minutes", () => {
  expect(readable("only the deadline ends it, in 3389.8 s.", 0)).toBe("only the deadline ends it, in 56 min 30 s.");
  expect(readable("silent for 30 s", 0)).toBe("silent for 30 s");
});

test.each<[unknown, string]>([
  ["yes", "yes"],
  [3, "3"],
  [true, "yes"],
  [{ answer: "use the blue one" }, "use the blue one"],
  ['{"output":"line one\\nline two"}', "line one\nline two"],
  ["{not json", "{not json"],
  [{ content: "say what it means", response_type: "DIRECT_ANSWER" }, "say what it means"],
])("%j is read as the text %j", (value, text) => {
  expect(formOf(value)).toEqual({ is: "text", text });
});

test("a few named values are read by their names, a structure as JSON", () => {
  expect(formOf({ url: "https://kuma.lan", monitors: 3, dry: false, hosts: ["a", "b"], note: null, vars: {} })).toEqual({
    is: "fields",
    fields: [
      ["url", "https://kuma.lan"],
      ["monitors", "3"],
      ["dry", "no"],
      ["hosts", "a, b"],
      ["note", "–"],
      ["vars", "–"],
    ],
  });
  expect(formOf({ dataset_id: "d-1" })).toEqual({ is: "fields", fields: [["dataset_id", "d-1"]] });
  for (const value of [{ a: { b: 1 } }, [1, 2], {}, [{ a: 1 }]]) expect(formOf(value)).toEqual({ is: "structure" });
  expect(inWords({ dataset_id: "d-1", rows: 3 })).toBe("dataset id: d-1, rows: 3");
  expect(inWords([1, { a: 2 }])).toBe('[1,{"a":2}]');
});
