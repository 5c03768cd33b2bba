// The one way to the management API. The session is a cookie that scripts cannot read; a request that changes
// something carries a header that no other site can send, so the hub can tell it from a forged one.

import { signal } from "@preact/signals";

/** Grows when the hub says that the session ended. */
export const ended = signal(0);

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly kind: string,
  ) {
    super(detail || title);
  }
}

type Query = Record<string, string | number | boolean | null | undefined>;

export function address(path: string, query: Query = {}): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) text.set(name, String(value));
  }
  const search = text.toString();
  return `/api/v1${path}${search ? `?${search}` : ""}`;
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return answer<T>(await reach(address(path, query), { signal: signal ?? null }));
}

export async function post<T>(path: string, body?: unknown): Promise<T> {
  return answer<T>(await reach(address(path), writing("POST", body)));
}

export async function remove(path: string): Promise<void> {
  await answer<unknown>(await reach(address(path), writing("DELETE")));
}

function writing(method: string, body?: unknown): RequestInit {
  const headers: Record<string, string> = { "Dragoman-Request": "dashboard" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return { method, headers, body: body === undefined ? null : JSON.stringify(body) };
}

async function reach(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, { ...init, credentials: "same-origin", cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "The hub cannot be reached", "The page goes on by itself when the hub is back.", "unreachable");
  }
}

async function answer<T>(response: Response): Promise<T> {
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  let body: unknown = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    // A proxy in between may answer with a page of its own.
  }
  if (response.ok) return body as T;
  const problem = (body ?? {}) as { title?: string; detail?: string; kind?: string };
  if (response.status === 401) ended.value += 1;
  throw new Problem(
    response.status,
    problem.title ?? `The hub answered ${response.status}`,
    problem.detail ?? "",
    problem.kind ?? "",
  );
}
