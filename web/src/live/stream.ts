// One event stream for the whole page. The browser's EventSource reconnects by itself and repeats the last id, so
// nothing is missed over a restart of the hub. Views register what they want to hear of; the stream is opened once.

import { signal } from "@preact/signals";
import type { Changes, TaskEvent } from "../api/types";

export const connection = signal<"live" | "reconnecting">("reconnecting");
/** Grows when the hub no longer has what was missed: views read everything again. */
export const resets = signal(0);
export const counts = signal<Record<string, number>>({});
export const openQuestions = signal<number | null>(null);
export const deadLetters = signal<number | null>(null);

type Listener = (changes: Changes) => void;
const listeners = new Set<Listener>();
const taskListeners = new Map<string, Set<(event: TaskEvent) => void>>();
let source: EventSource | null = null;
let watched = "";
let lastId = "";
let again = 0;
let pause = 500;

export function onChanges(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Every event of one task, as it happens. The stream carries the events of at most one task beside the digest. */
export function onTask(id: string, listener: (event: TaskEvent) => void): () => void {
  const set = taskListeners.get(id) ?? new Set();
  set.add(listener);
  taskListeners.set(id, set);
  reopen();
  return () => {
    set.delete(listener);
    if (!set.size) taskListeners.delete(id);
    reopen();
  };
}

export function open(): void {
  watched = [...taskListeners.keys()].join(",");
  const query = new URLSearchParams({ detail: "digest" });
  if (watched) query.set("follow", watched);
  if (lastId) query.set("after", lastId);
  source?.close();
  const opened = new EventSource(`/api/v1/events?${query}`);
  source = opened;
  opened.addEventListener("open", () => {
    connection.value = "live";
    pause = 500;
  });
  opened.addEventListener("error", () => {
    connection.value = "reconnecting";
    // A closed EventSource (the hub answered with an error) does not come back by itself.
    if (opened.readyState === EventSource.CLOSED) later();
  });
  opened.addEventListener("changes", (event) => {
    lastId = event.lastEventId || lastId;
    const changes = JSON.parse(event.data) as Changes;
    counts.value = changes.counts;
    openQuestions.value = changes.questions.open;
    deadLetters.value = changes.deadletters;
    for (const listener of listeners) listener(changes);
  });
  opened.addEventListener("task", (event) => {
    lastId = event.lastEventId || lastId;
    const happened = JSON.parse(event.data) as TaskEvent;
    for (const listener of taskListeners.get(happened.task_id) ?? []) listener(happened);
  });
  opened.addEventListener("reset", () => {
    lastId = "";
    resets.value += 1;
  });
}

function reopen(): void {
  if (source && [...taskListeners.keys()].join(",") !== watched) open();
}

function later(): void {
  clearTimeout(again);
  again = setTimeout(open, pause) as unknown as number;
  pause = Math.min(pause * 2, 5000);
}
