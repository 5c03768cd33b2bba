// Who is logged in, and what they may do.

import { signal } from "@preact/signals";
import { Problem, ended, get } from "./api/client";
import type { Me } from "./api/types";
import { close, open } from "./live/stream";

const RANK = { viewer: 0, operator: 1, admin: 2 } as const;

export const me = signal<Me | null>(null);
export const entry = signal<"asking" | "in" | "out" | Problem>("asking");

/** Whether the person has this role or a higher one. The hub decides; this only hides what it would refuse. */
export const may = (role: Me["role"]): boolean => me.value !== null && RANK[me.value.role] >= RANK[role];

export async function enter(): Promise<void> {
  try {
    me.value = await get<Me>("/me");
    entry.value = "in";
    open();
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status !== 401) entry.value = problem;
    if (problem.status === 0) setTimeout(enter, 2000);
  }
}

// A session ends by its age, by a logout elsewhere, or when the person is removed: whichever request hears of it first.
ended.subscribe((count) => {
  if (!count) return;
  close();
  me.value = null;
  entry.value = "out";
});
