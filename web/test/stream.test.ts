import { afterEach, beforeEach, expect, test, vi } from "vitest";

class FakeSource extends EventTarget {
  static readonly CLOSED = 2;
  static all: FakeSource[] = [];
  readyState = 0;
  constructor(readonly url: string) {
    super();
    FakeSource.all.push(this);
  }
  close(): void {
    this.readyState = FakeSource.CLOSED;
  }
  opens(): void {
    this.readyState = 1;
    this.dispatchEvent(new Event("open"));
  }
  breaks(state = 0): void {
    this.readyState = state;
    this.dispatchEvent(new Event("error"));
  }
  says(kind: string, data: unknown, lastEventId = ""): void {
    this.dispatchEvent(Object.assign(new Event(kind), { data: JSON.stringify(data), lastEventId }));
  }
}

const CHANGES = {
  n: 1,
  counts: {},
  tasks: [],
  more: false,
  agents: [],
  questions: { open: 3, changed: [] },
  deadletters: 2,
  wire: [],
  skipped: 0,
};

const answers = vi.fn<() => Promise<Response>>();
const last = (): FakeSource => FakeSource.all.at(-1) as FakeSource;

async function fresh() {
  vi.resetModules();
  const stream = await import("../src/live/stream");
  const client = await import("../src/api/client");
  return { ...stream, ...client };
}

beforeEach(() => {
  vi.useFakeTimers();
  FakeSource.all = [];
  vi.stubGlobal("EventSource", FakeSource);
  vi.stubGlobal("fetch", answers);
  answers.mockReset();
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("the page is live when the stream opens, and reconnecting when it breaks", async () => {
  const { connection, open } = await fresh();
  expect(connection.value).toBe("reconnecting");
  open();
  last().opens();
  expect(connection.value).toBe("live");
  last().breaks();
  expect(connection.value).toBe("reconnecting");
  last().opens();
  expect(connection.value).toBe("live");
  expect(FakeSource.all).toHaveLength(1); // the browser reconnects by itself
});

test("a digest sets the badges and reaches every view that listens", async () => {
  const { deadLetters, onChanges, open, openQuestions } = await fresh();
  const heard: number[] = [];
  const stop = onChanges((changes) => heard.push(changes.n));
  open();
  last().says("changes", CHANGES, "7");
  stop();
  last().says("changes", { ...CHANGES, n: 2 }, "8");
  expect([heard, openQuestions.value, deadLetters.value]).toEqual([[1], 3, 2]);
});

test("a reset tells the views to read again", async () => {
  const { open, resets } = await fresh();
  open();
  last().says("reset", {});
  expect(resets.value).toBe(1);
});

test("a stream that the hub refused is opened again after the last id, ever more slowly", async () => {
  const { open } = await fresh();
  answers.mockImplementation(async () => Response.json({ name: "ada", role: "viewer" }));
  open();
  last().says("changes", CHANGES, "42");
  last().breaks(FakeSource.CLOSED);
  await vi.advanceTimersByTimeAsync(499);
  expect(FakeSource.all).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(1);
  expect(last().url).toBe("/api/v1/events?detail=digest&after=42");
  last().breaks(FakeSource.CLOSED);
  await vi.advanceTimersByTimeAsync(999);
  expect(FakeSource.all).toHaveLength(2);
  await vi.advanceTimersByTimeAsync(1);
  expect(FakeSource.all).toHaveLength(3);
});

test("a stream that is refused because the session ended says so, and does not come back", async () => {
  const { close, ended, open } = await fresh();
  ended.subscribe((count) => count && close());
  answers.mockImplementation(async () => Response.json({ title: "no session" }, { status: 401 }));
  open();
  last().breaks(FakeSource.CLOSED);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(ended.value).toBe(1);
  expect(FakeSource.all).toHaveLength(1);
});

test("while the hub is away the page goes on asking", async () => {
  const { open } = await fresh();
  answers.mockRejectedValueOnce(new TypeError("refused")).mockImplementation(async () => Response.json({}));
  open();
  last().breaks(FakeSource.CLOSED);
  await vi.advanceTimersByTimeAsync(500);
  expect(FakeSource.all).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(1000);
  expect(FakeSource.all).toHaveLength(2);
});
