// Values as people read them. Pure functions: the tests hold them.

export const shortId = (id: string): string => (id.length > 12 ? `…${id.slice(-6)}` : id);

export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  // Rounded first, or 59.6 s would be "60 s" beside a minute.
  const whole = Math.round(seconds);
  if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** As short as an axis needs it. */
export function shortDuration(seconds: number): string {
  if (seconds < 90) return duration(seconds);
  return seconds < 5400 ? `${Number((seconds / 60).toFixed(1))} min` : `${Number((seconds / 3600).toFixed(1))} h`;
}

export function ago(then: string, now: number): string {
  const seconds = (now - Date.parse(then)) / 1000;
  if (seconds < 2) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export function bytes(size: number): string {
  if (size < 1000) return `${size} B`;
  if (size < 1_000_000) return `${(size / 1000).toFixed(size < 10_000 ? 1 : 0)} kB`;
  return `${(size / 1_000_000).toFixed(size < 10_000_000 ? 1 : 0)} MB`;
}

export const number = (value: number): string => value.toLocaleString("en-GB");

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** JSON as text, in the order it came. A string that is JSON itself is shown as the JSON. */
export function pretty(value: unknown): string {
  if (typeof value === "string") {
    try {
      return JSON.stringify(JSON.parse(value), null, 2);
    } catch {
      return value;
    }
  }
  return JSON.stringify(value, null, 2) ?? "";
}

/** What an agent or a person wrote, as it is read: a text, a few named values, or a structure that only JSON shows. */
export type Form =
  | { is: "text"; text: string }
  | { is: "fields"; fields: [name: string, text: string][] }
  | { is: "structure" };

const MOST_FIELDS = 24;

export function formOf(value: unknown): Form {
  const meant = parsed(value);
  if (isEmpty(meant)) return { is: "structure" };
  const text = textIn(meant);
  if (text !== null) return { is: "text", text };
  if (!meant || typeof meant !== "object" || Array.isArray(meant)) return { is: "structure" };
  const fields = Object.entries(meant).map(([name, one]): [string, string | null] => [
    name,
    Array.isArray(one) && one.length ? (one.every((part) => textIn(part) !== null) ? one.map(textIn).join(", ") : null) : textIn(one),
  ]);
  if (!fields.length || fields.length > MOST_FIELDS || fields.some(([, one]) => one === null)) return { is: "structure" };
  const said = fields.filter(([name]) => !AROUND.has(name));
  if (said.length === 1 && said[0] && GENERIC.has(said[0][0])) return { is: "text", text: said[0][1] ?? "" };
  return { is: "fields", fields: fields as [string, string][] };
}

/** Fields that only wrap a text, where a protocol wants an object. */
const GENERIC = new Set(["answer", "content", "message", "output", "reply", "response", "result", "text", "value"]);

const isEmpty = (value: unknown): boolean => !!value && typeof value === "object" && !Object.keys(value).length;

/** What an envelope says about the text in it. */
const AROUND = new Set(["content_type", "format", "mime_type", "response_type"]);

/** A string that is a JSON object or list is what it stands for. */
function parsed(value: unknown): unknown {
  if (typeof value !== "string" || !/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function textIn(value: unknown): string | null {
  if (typeof value === "string") return value;
  if (typeof value === "number" || typeof value === "bigint") return String(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === null || isEmpty(value) ? "–" : null;
}

/** The same on one line. */
export function inWords(value: unknown): string {
  const form = formOf(value);
  if (form.is === "text") return form.text;
  return form.is === "fields" ? form.fields.map(([name, text]) => `${humanKind(name)}: ${text}`).join(", ") : JSON.stringify(parsed(value));
}

export const humanKind = (kind: string): string => kind.replaceAll("_", " ");

/** The time of day to the millisecond, where the person is. */
export function clock(at: string): string {
  const then = new Date(at);
  const two = (value: number): string => String(value).padStart(2, "0");
  return `${two(then.getHours())}:${two(then.getMinutes())}:${two(then.getSeconds())}.${String(then.getMilliseconds()).padStart(3, "0")}`;
}

const INSTANT = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)/g;

const SECONDS = /\b(\d+(?:\.\d+)?) s\b/g;
/** Seconds above this are written as minutes and hours. */
const MANY_SECONDS = 90;

/** A sentence of the hub with its instants and times as a person reads them: the time, and the day where it is another
 * one; minutes and hours for many seconds. */
export function readable(text: string, now: number): string {
  const today = new Date(now).toDateString();
  const timed = text.replace(SECONDS, (found, count: string) => (Number(count) > MANY_SECONDS ? duration(Number(count)) : found));
  return timed.replace(INSTANT, (found) => {
    const then = new Date(found);
    const time = then.toLocaleTimeString("en-GB");
    return then.toDateString() === today
      ? time
      : `${then.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
  });
}
