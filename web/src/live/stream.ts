// One event stream for the whole page. The browser's EventSource reconnects by itself and repeats the last id; the hub
// answers such a stream with `reset`, and then the views are read again. The stream brings a digest of everything, so it
// is opened once and never again for another view.

import { signal } from "@preact/signals";
import { get } from "../api/client";
import type { Changes } from "../api/types";

export const connection = signal<"live" | "reconnecting">("reconnecting");
/** Grows when changes may have been missed: views read everything again. */
export const resets = signal(0);
export const openQuestions = signal<number | null>(null);
export const deadLetters = signal<number | null>(null);

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 5000;

type Listener = (changes: Changes) => void;
const listeners = new Set<Listener>();
let source: EventSource | null = null;
let lastId = "";
let again = 0;
let pause = FIRST_PAUSE;

export function onChanges(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function open(): void {
  const query = new URLSearchParams({ detail: "digest" });
  if (lastId) query.set("after", lastId);
  clearTimeout(again);
  source?.close();
  const opened = new EventSource(`/api/v1/events?${query}`);
  source = opened;
  opened.addEventListener("open", () => {
    connection.value = "live";
    pause = FIRST_PAUSE;
  });
  opened.addEventListener("error", () => {
    connection.value = "reconnecting";
    // A closed EventSource (the hub, or a proxy, answered with an error) does not come back by itself.
    if (opened.readyState === EventSource.CLOSED) later();
  });
  opened.addEventListener("changes", (event) => {
    lastId = event.lastEventId || lastId;
    const changes = JSON.parse(event.data) as Changes;
    openQuestions.value = changes.questions.open;
    deadLetters.value = changes.deadletters;
    for (const listener of listeners) listener(changes);
  });
  opened.addEventListener("reset", () => {
    resets.value += 1;
  });
}

export function close(): void {
  clearTimeout(again);
  source?.close();
  source = null;
  lastId = "";
  connection.value = "reconnecting";
}

function later(): void {
  clearTimeout(again);
  again = setTimeout(ask, pause) as unknown as number;
  pause = Math.min(pause * 2, LONGEST_PAUSE);
}

/** An EventSource does not tell why it was refused. A request does: where the session ended, the page shows the login. */
async function ask(): Promise<void> {
  const refused = source;
  try {
    await get("/me");
    if (source === refused) open();
  } catch {
    if (source && source === refused) later();
  }
}
