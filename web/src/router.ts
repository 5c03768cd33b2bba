// Addresses of the dashboard. The path names the view and the query string holds its whole state, so that a link shows
// another person the same page.

import { computed, signal } from "@preact/signals";

export interface Place {
  path: string;
  query: URLSearchParams;
}

const here = (): Place => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export const place = signal<Place>(here());
export const path = computed(() => place.value.path);

addEventListener("popstate", () => {
  place.value = here();
});

export function go(url: string, options: { replace?: boolean } = {}): void {
  if (url === location.pathname + location.search) return;
  if (options.replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  const moved = place.value.path !== location.pathname;
  place.value = here();
  if (moved) scrollTo(0, 0);
}

/** The same page with other filters; an empty value removes one. */
export function withQuery(changes: Record<string, string | null>, options: { replace?: boolean } = {}): void {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const search = query.toString();
  go(place.value.path + (search ? `?${search}` : ""), options);
}

/** `/tasks/{id}` against `/tasks/7f3a` gives `{id: "7f3a"}`; null where it does not fit. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split("/");
  const given = path.replace(/\/+$/, "").split("/");
  if (path === "/" ? pattern !== "/" : wanted.length !== given.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = given[index] ?? "";
    if (part.startsWith("{")) {
      try {
        found[part.slice(1, -1)] = decodeURIComponent(value);
      } catch {
        return null;
      }
    } else if (part !== value) return null;
  }
  return found;
}

/** Clicks on links inside the dashboard change the view without loading the page again. */
export function followLinks(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) {
    return;
  }
  const link = (event.target as Element | null)?.closest?.("a");
  if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (link.pathname.startsWith("/docs") || link.pathname.startsWith("/api/") || link.pathname === "/openapi.json") return;
  event.preventDefault();
  go(link.pathname + link.search);
}
