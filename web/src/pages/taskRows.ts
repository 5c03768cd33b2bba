// The rows of the list of tasks: pages read one after the other, the newest page read again while others look on, and
// rows changed in place by the stream. Pure, so that the tests hold it.

import type { Changes, TaskRow } from "../api/types";

/** Rows that a page holds at most, however far a person scrolls. */
export const MOST_ROWS = 100_000;

export interface Rows {
  rows: TaskRow[];
  /** The cursor of the page behind the last row; null at the end of the list. */
  next: string | null;
}

interface Page {
  tasks: readonly TaskRow[];
  next: string | null;
}

/** Only what a row shows is kept: a list may be long, and a task is large. */
export const rowOf = (task: TaskRow): TaskRow => ({
  id: task.id,
  type: task.type,
  name: task.name,
  status: task.status,
  waiting: task.waiting,
  agent: task.agent,
  protocol_in: task.protocol_in,
  protocol_out: task.protocol_out,
  progress: task.progress,
  created_at: task.created_at,
  updated_at: task.updated_at,
});

/** The newest page, read again. Rows behind it stay where a person has scrolled to them (`keep`); else only this page is
 * shown, so that a list that is looked at all day does not grow. */
export function withNewest(known: Rows, page: Page, keep: boolean): Rows {
  const rows = page.tasks.map(rowOf);
  const oldest = rows.at(-1)?.created_at;
  if (!keep || !page.next || oldest === undefined) return { rows, next: page.next };
  const fresh = new Set(rows.map((row) => row.id));
  const behind = known.rows.filter((row) => row.created_at <= oldest && !fresh.has(row.id));
  return behind.length ? { rows: [...rows, ...behind].slice(0, MOST_ROWS), next: known.next } : { rows, next: page.next };
}

/** The page behind the last row. */
export function withOlder(known: Rows, page: Page): Rows {
  const ids = new Set(known.rows.map((row) => row.id));
  const rows = [...known.rows, ...page.tasks.filter((task) => !ids.has(task.id)).map(rowOf)];
  return rows.length < MOST_ROWS ? { rows, next: page.next } : { rows: rows.slice(0, MOST_ROWS), next: null };
}

/** Rows as the stream says they are now, and whether it told of tasks that are not among them. */
export function withChanges(rows: TaskRow[], changes: Changes): { rows: TaskRow[]; others: boolean } {
  const changed = new Map(changes.tasks.map((row) => [row.id, row]));
  if (!changed.size) return { rows, others: changes.more };
  const merged = rows.map((row) => {
    const now = changed.get(row.id);
    if (!now) return row;
    changed.delete(row.id);
    return now;
  });
  return { rows: merged, others: changes.more || changed.size > 0 };
}
