// One request a view: read it, read it again when the stream says that something of it changed, never twice at once.

import { useSignal } from "@preact/signals";
import { useCallback, useEffect, useRef } from "preact/hooks";
import { Problem, get } from "../api/client";
import type { Changes } from "../api/types";
import { onChanges, resets } from "../live/stream";

/** The shortest pause between two reads of one view. */
const PAUSE = 400;

export interface View<T> {
  data: T | null;
  error: unknown;
  refresh: () => void;
}

type Query = Record<string, string | number | boolean | null | undefined>;

export function useView<T>(path: string, query: Query, affects?: (changes: Changes) => boolean): View<T> {
  const data = useSignal<T | null>(null);
  const error = useSignal<unknown>(null);
  const state = useRef({ busy: false, dirty: false, timer: 0, abort: new AbortController() });
  const key = `${path}?${JSON.stringify(query)}`;

  const read = useCallback(async () => {
    const own = state.current;
    if (own.busy) {
      own.dirty = true;
      return;
    }
    own.busy = true;
    own.dirty = false;
    const { signal } = own.abort;
    try {
      const answer = await get<T>(path, query, signal);
      if (!signal.aborted) {
        data.value = answer;
        error.value = null;
      }
    } catch (problem) {
      if (!signal.aborted) {
        // What is on the page stays while the hub is away; the stream says so and reads again when it is back.
        if (!(problem instanceof Problem && problem.kind === "unreachable" && data.value)) error.value = problem;
      }
    } finally {
      if (!signal.aborted) {
        own.busy = false;
        if (own.dirty) own.timer = setTimeout(read, PAUSE) as unknown as number;
      }
    }
  }, [key]);

  useEffect(() => {
    const own = { busy: false, dirty: false, timer: 0, abort: new AbortController() };
    state.current = own;
    data.value = null;
    error.value = null;
    void read();
    const soon = () => {
      if (own.timer) return;
      own.timer = setTimeout(() => {
        own.timer = 0;
        void read();
      }, PAUSE) as unknown as number;
    };
    const stop = onChanges((changes) => {
      if (affects?.(changes)) soon();
    });
    const first = resets.peek();
    const stopResets = resets.subscribe((count) => {
      if (count !== first) soon();
    });
    return () => {
      own.abort.abort();
      clearTimeout(own.timer);
      stop();
      stopResets();
    };
  }, [key]);

  return { data: data.value, error: error.value, refresh: () => void read() };
}
