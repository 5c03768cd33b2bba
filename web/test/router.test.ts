// @vitest-environment node
import { beforeEach, expect, test, vi } from "vitest";

const visited: string[] = [];
const location = { pathname: "/", search: "", origin: "http://hub" };
const visit = (kind: string) => (_state: unknown, _title: string, url: string) => {
  visited.push(`${kind} ${url}`);
  const [path = "", search = ""] = url.split("?");
  Object.assign(location, { pathname: path, search: search ? `?${search}` : "" });
};
vi.stubGlobal("location", location);
vi.stubGlobal("addEventListener", () => {});
vi.stubGlobal("scrollTo", () => {});
vi.stubGlobal("history", { pushState: visit("push"), replaceState: visit("replace") });
const { followLinks, go, match, path, place, withQuery } = await import("../src/router");

beforeEach(() => {
  go("/");
  visited.length = 0;
});

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

test("filters are set, changed and removed in the address, and the others stay", () => {
  go("/tasks?status=failed&q=a%20b");
  withQuery({ agent: "infra-1" });
  withQuery({ status: null, q: "c&d" }, { replace: true });
  expect(visited).toEqual([
    "push /tasks?status=failed&q=a%20b",
    "push /tasks?status=failed&q=a+b&agent=infra-1",
    "replace /tasks?q=c%26d&agent=infra-1",
  ]);
  expect([path.value, place.value.query.get("q")]).toEqual(["/tasks", "c&d"]);
});

test("the last filter that is removed leaves the bare path", () => {
  go("/tasks?status=failed");
  withQuery({ status: "" });
  expect(visited.at(-1)).toBe("push /tasks");
});

test("an address that is there already is no step in the history", () => {
  go("/tasks");
  go("/tasks");
  expect(visited).toEqual(["push /tasks"]);
});

function click(link: Record<string, unknown>, event: Record<string, unknown> = {}): boolean {
  let prevented = false;
  const anchor = { target: "", origin: "http://hub", search: "", hasAttribute: () => false, ...link };
  followLinks({
    defaultPrevented: false,
    button: 0,
    target: { closest: () => anchor },
    preventDefault: () => {
      prevented = true;
    },
    ...event,
  } as unknown as MouseEvent);
  return prevented;
}

test("a link inside the dashboard changes the view; others are the browser's", () => {
  expect(click({ pathname: "/agents" })).toBe(true);
  expect(path.value).toBe("/agents");
  expect(click({ pathname: "/tasks" }, { ctrlKey: true })).toBe(false);
  expect(click({ pathname: "/docs" })).toBe(false);
  expect(click({ pathname: "/api/v1/audit/export" })).toBe(false);
  expect(click({ pathname: "/", origin: "http://elsewhere" })).toBe(false);
  expect(path.value).toBe("/agents");
});
