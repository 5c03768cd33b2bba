import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { reader } from "../src/ui/reader";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

/** A view whose answers come when the test says so. */
function view(pause: number) {
  const reads: { signal: AbortSignal; answer: () => void }[] = [];
  const own = reader((signal) => new Promise<void>((done) => reads.push({ signal, answer: done })), pause);
  return { own, reads };
}

test("the first change is read at once, later ones not before the pause is over", async () => {
  const { own, reads } = view(2000);
  own.now();
  reads[0]?.answer();
  await vi.advanceTimersByTimeAsync(100);
  for (let change = 0; change < 50; change += 1) own.soon();
  await vi.advanceTimersByTimeAsync(1899);
  expect(reads).toHaveLength(1);
  await vi.advanceTimersByTimeAsync(1);
  expect(reads).toHaveLength(2);
});

test("what changes while a view is being read is read once more", async () => {
  const { own, reads } = view(500);
  own.now();
  own.soon();
  own.soon();
  await vi.advanceTimersByTimeAsync(5000);
  expect(reads).toHaveLength(1); // never twice at a time
  reads[0]?.answer();
  await vi.advanceTimersByTimeAsync(500);
  expect(reads).toHaveLength(2);
  reads[1]?.answer();
  await vi.advanceTimersByTimeAsync(5000);
  expect(reads).toHaveLength(2);
});

test("it goes on reading after it had to read once more", async () => {
  const { own, reads } = view(500);
  for (let round = 0; round < 5; round += 1) {
    own.soon();
    await vi.advanceTimersByTimeAsync(500);
    own.soon();
    reads.at(-1)?.answer();
    await vi.advanceTimersByTimeAsync(500);
    reads.at(-1)?.answer();
    await vi.advanceTimersByTimeAsync(500);
  }
  expect(reads.length).toBeGreaterThanOrEqual(10);
});

test("a view that is left aborts its request and reads no more", async () => {
  const { own, reads } = view(500);
  own.now();
  own.soon();
  own.stop();
  reads[0]?.answer();
  own.soon();
  await vi.advanceTimersByTimeAsync(5000);
  expect(reads).toHaveLength(1);
  expect(reads[0]?.signal.aborted).toBe(true);
});
