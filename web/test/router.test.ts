// @vitest-environment node
import { expect, test, vi } from "vitest";

vi.stubGlobal("location", { pathname: "/", search: "", origin: "http://hub" });
vi.stubGlobal("addEventListener", () => {});
const { match } = await import("../src/router");

test("a pattern gives the values of its places", () => {
  expect(match("/tasks/{id}", "/tasks/7f3a")).toEqual({ id: "7f3a" });
  expect(match("/tasks/{id}", "/tasks/a%2Fb/")).toEqual({ id: "a/b" });
  expect(match("/", "/")).toEqual({});
});

test("an address that does not fit gives null, also one that cannot be decoded", () => {
  expect(match("/tasks", "/tasks/7f3a")).toBeNull();
  expect(match("/", "/tasks")).toBeNull();
  expect(match("/tasks/{id}", "/tasks/%E0%A4%A")).toBeNull();
});
