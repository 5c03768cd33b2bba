// One request a view: read it, and read it again when the stream says that something of it changed.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Problem, get } from "../api/client";
import type { Changes } from "../api/types";
import { onChanges, resets } from "../live/stream";
import { type Reader, reader } from "./reader";

/** The shortest time between two reads of one view, in milliseconds. */
export const PAUSE = 500;

export interface View<T> {
  data: T | null;
  error: unknown;
  /** Neither data nor an error is there yet. */
  reading: boolean;
  refresh: () => void;
  /** Reads again as soon as the pace allows. */
  changed: () => void;
}

type Query = Record<string, string | number | boolean | null | undefined>;

export function useView<T>(
  path: string,
  query: Query,
  affects?: (changes: Changes) => boolean,
  pause: number = PAUSE,
): View<T> {
  const data = useSignal<T | null>(null);
  const error = useSignal<unknown>(null);
  const current = useRef<Reader | null>(null);
  const affected = useRef(affects);
  affected.current = affects;
  const key = `${path}?${JSON.stringify(query)}`;

  useEffect(() => {
    data.value = null;
    error.value = null;
    const own = reader(async (signal) => {
      try {
        const answer = await get<T>(path, query, signal);
        if (signal.aborted) return;
        data.value = answer;
        error.value = null;
      } catch (problem) {
        if (signal.aborted) return;
        // What is on the page stays while the hub is away; it is read again when the stream is back.
        if (!(problem instanceof Problem && problem.kind === "unreachable" && data.value)) error.value = problem;
      }
    }, pause);
    current.current = own;
    own.now();
    const stopChanges = onChanges((changes) => {
      if (affected.current?.(changes)) own.soon();
    });
    const stopResets = onResets(own.soon);
    return () => {
      own.stop();
      stopChanges();
      stopResets();
    };
  }, [key]);

  return {
    data: data.value,
    error: error.value,
    reading: data.value === null && error.value === null,
    refresh: () => current.current?.now(),
    changed: () => current.current?.soon(),
  };
}

/** Calls when changes may have been missed, not at once. */
export function onResets(listener: () => void): () => void {
  let seen = resets.peek();
  return resets.subscribe((count) => {
    if (count === seen) return;
    seen = count;
    listener();
  });
}
