// The current row of a list (j, k, Enter) and the selected ones (x). Pure moves; `useRows` ties them to the keyboard.
//
// The current row is remembered by its id, so that rows which come above it do not make another one current. A key that
// is pressed while the list is being read waits for its rows: no key of a person is lost because the hub is slow.

import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";

export function move(current: number, by: number, count: number): number {
  if (!count) return -1;
  return Math.max(0, Math.min(count - 1, current + by));
}

/** A row, and where it was last. */
export interface At {
  id: string;
  index: number;
}

/** Where that row is now; where it is gone, the row that took its place. -1: there is none. */
export function indexOf(at: At | null, ids: readonly string[]): number {
  if (!at) return -1;
  const found = ids[at.index] === at.id ? at.index : ids.indexOf(at.id);
  return found >= 0 ? found : Math.min(at.index, ids.length - 1);
}

export interface Rows {
  current: number;
  /** Another object after each move of the keyboard, and only then: what keeps the current row in view watches it. */
  at: At | null;
  chosen: ReadonlySet<string>;
  toggle: (id: string) => void;
  choose: (ids: readonly string[]) => void;
}

/** What a key is for. A dialog that was closed keeps the focus until the page is drawn again: such a key is the page's. */
export function targetOf(event: KeyboardEvent): HTMLElement {
  const target = event.target as HTMLElement;
  return target.closest("dialog:not([open])") ? document.body : target;
}

const KEYS = new Set(["j", "k", "x", "Enter"]);
/** What has the focus and does something of its own by Enter. */
const OPENS_ITSELF = "a, button, summary, [role=button]";

/** `reading`: the rows are not known yet. */
export function useRows(ids: readonly string[], onOpen: (id: string) => void, reading: boolean): Rows {
  const at = useSignal<At | null>(null);
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  const early = useRef<string[]>([]);
  const drawn = useRef({ ids, onOpen, reading });
  const toggle = (id: string) => {
    const next = new Set(chosen.value);
    if (!next.delete(id)) next.add(id);
    chosen.value = next;
  };
  const press = (key: string) => {
    const { ids, onOpen } = drawn.current;
    const index = indexOf(at.value, ids);
    const id = ids[index];
    if (key === "j" || key === "k") {
      const next = move(index, key === "j" ? 1 : -1, ids.length);
      const there = ids[next];
      at.value = there === undefined ? null : { id: there, index: next };
    } else if (!id) return;
    else if (key === "x") toggle(id);
    else onOpen(id);
  };
  const current = indexOf(at.value, ids);
  // With the drawing, not after it: a person may press a key as soon as the rows are there.
  useLayoutEffect(() => {
    drawn.current = { ids, onOpen, reading };
    if (reading) return;
    const now = at.peek();
    if (now && ids[current] === now.id) now.index = current;
    for (const key of early.current.splice(0)) press(key);
  });
  useLayoutEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = targetOf(event);
      if (event.metaKey || event.ctrlKey || event.altKey || target.closest("input, textarea, select, dialog")) return;
      if (!KEYS.has(event.key) || (event.key === "Enter" && target.closest(OPENS_ITSELF))) return;
      if (event.key === "Enter") event.preventDefault(); // or it presses a button of the dialog that it opens
      if (drawn.current.reading) early.current.push(event.key);
      else press(event.key);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  return { current, at: at.value, chosen: chosen.value, toggle, choose: (all) => (chosen.value = new Set(all)) };
}
