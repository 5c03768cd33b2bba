// The current row of a list (j, k, Enter) and the selected ones (x). Pure moves; `useRows` ties them to the keyboard.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

export function move(current: number, by: number, count: number): number {
  if (!count) return -1;
  return Math.max(0, Math.min(count - 1, current + by));
}

export interface Rows {
  current: number;
  chosen: ReadonlySet<string>;
  toggle: (id: string) => void;
  choose: (ids: readonly string[]) => void;
}

export function useRows(ids: readonly string[], onOpen: (id: string) => void): Rows {
  const current = useSignal(-1);
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  const toggle = (id: string) => {
    const next = new Set(chosen.value);
    if (!next.delete(id)) next.add(id);
    chosen.value = next;
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.metaKey || event.ctrlKey || event.altKey || target.closest("input, textarea, select, dialog")) return;
      const id = ids[current.value];
      if (event.key === "j") current.value = move(current.value, 1, ids.length);
      else if (event.key === "k") current.value = move(current.value, -1, ids.length);
      else if (event.key === "x" && id) toggle(id);
      else if (event.key === "Enter" && id && target === document.body) onOpen(id);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [ids]);
  return { current: current.value, chosen: chosen.value, toggle, choose: (all) => (chosen.value = new Set(all)) };
}
