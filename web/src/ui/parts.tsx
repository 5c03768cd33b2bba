// Small pieces that every page uses.

import { signal } from "@preact/signals";
import { type ComponentChildren, Fragment } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Problem } from "../api/client";
import { may } from "../session";
import { ago, formOf, humanKind, pretty, shortId } from "./format";

/** The time as the page shows it; it moves once a second for all places that say how long ago something was. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

const TONES: Record<string, string> = {
  completed: "ok",
  idle: "ok",
  active: "ok",
  closed: "ok",
  accepted: "ok",
  refused: "bad",
  running: "run",
  assigned: "run",
  busy: "run",
  queued: "idle",
  offline: "idle",
  paused: "wait",
  waiting: "wait",
  connecting: "wait",
  half_open: "wait",
  open: "wait",
  failed: "bad",
  cancelled: "idle",
  crashed: "bad",
  error: "bad",
  expired: "idle",
  terminated: "bad",
  superseded: "idle",
  connected: "ok",
  back: "ok",
  disconnected: "idle",
  silent: "wait",
};

export const toneOf = (status: string): string => TONES[status] ?? "idle";

export function Status({ status, detail, testid }: { status: string; detail?: string | null; testid?: string }) {
  return (
    <span class={`status tone-${toneOf(status)}`} data-testid={testid}>
      {status.replaceAll("_", " ")}
      {detail ? <span class="status-detail"> · {detail}</span> : null}
    </span>
  );
}

export function Protocol({ name }: { name: string | null | undefined }) {
  return name ? <span class={`protocol p-${name}`}>{name}</span> : <span class="muted">–</span>;
}

/** Through which protocols a task goes: caller's → agent's. */
export function Route({ from, to }: { from: string; to: string | null | undefined }) {
  return (
    <span class="route">
      <Protocol name={from} />
      <span class="muted" aria-label="to">
        →
      </span>
      <Protocol name={to} />
    </span>
  );
}

/** `opens`: a click anywhere on its row follows it (`openRow`). */
export function TaskLink({ id, opens }: { id: string; opens?: boolean }) {
  return (
    <a class="mono" href={`/tasks/${encodeURIComponent(id)}`} title={id} data-open={opens}>
      {shortId(id)}
    </a>
  );
}

export function AgentLink({ id, opens }: { id: string | null | undefined; opens?: boolean }) {
  return id ? (
    <a href={`/agents/${encodeURIComponent(id)}`} data-open={opens}>
      {id}
    </a>
  ) : (
    <span class="muted">–</span>
  );
}

export function Ago({ at }: { at: string | null | undefined }) {
  if (!at) return <span class="muted">–</span>;
  return (
    <time dateTime={at} title={new Date(at).toLocaleString()}>
      {ago(at, now.value)}
    </time>
  );
}

export function Json({ value, label }: { value: unknown; label?: string }) {
  return (
    <pre class="block" tabIndex={0} role="group" aria-label={label ?? "JSON"}>
      {pretty(value)}
    </pre>
  );
}

/** A result, an answer, an input: as text where it is one, with the raw form a click away. */
export function Payload({ value, label }: { value: unknown; label: string }) {
  const form = formOf(value);
  if (form.is === "structure") return <Json value={value} label={label} />;
  return (
    <div class="payload">
      {form.is === "text" ? (
        <p class="payload-text" role="group" aria-label={label}>
          {form.text}
        </p>
      ) : (
        <dl class="facts" aria-label={label}>
          {form.fields.map(([name, text]) => (
            <Fragment key={name}>
              <dt>{humanKind(name)}</dt>
              <dd class="payload-text">{text}</dd>
            </Fragment>
          ))}
        </dl>
      )}
      <details class="raw">
        <summary>Raw</summary>
        <Json value={value} label={`${label}, raw`} />
      </details>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** Why a person sees no buttons: it is said once on the page. */
export function ViewOnly({ to }: { to: string }) {
  if (may("operator")) return null;
  return (
    <p class="view-only" role="note" data-testid="view-only">
      You are a viewer: you see everything, but cannot {to}. An admin can give you the role operator.
    </p>
  );
}

export function ErrorBox({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const problem = error instanceof Problem ? error : new Problem(0, "This page has an error", String(error), "");
  return (
    <div class="error-box" role="alert">
      <strong>{problem.title}</strong>
      <p>{problem.detail}</p>
      {onRetry ? (
        <button type="button" class="button" onClick={onRetry}>
          Try again
        </button>
      ) : null}
    </div>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  return (
    <button
      type="button"
      class="button quiet"
      onClick={async () => {
        try {
          await navigator.clipboard.writeText(text);
          toast(`Copied: ${text.length > 80 ? `${text.slice(0, 80)}…` : text}`);
        } catch {
          toast("The browser did not allow copying; select the text instead.", "bad");
        }
      }}
    >
      {label}
    </button>
  );
}

/** Tabs as a keyboard has them: one stop, arrows between them. */
export function Tabs<T extends string>(props: {
  label: string;
  names: readonly T[];
  chosen: string;
  onChoose: (name: T) => void;
}) {
  const { names, chosen, onChoose } = props;
  return (
    <div
      class="tabs card-tabs"
      role="tablist"
      aria-label={props.label}
      onKeyDown={(event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const at = names.indexOf(chosen as T);
        const next = names[(at + by + names.length) % names.length];
        if (!next) return;
        event.preventDefault();
        onChoose(next);
        event.currentTarget.querySelectorAll<HTMLElement>("[role=tab]")[names.indexOf(next)]?.focus();
      }}
    >
      {names.map((name) => (
        <button
          type="button"
          class="tab"
          role="tab"
          aria-selected={chosen === name}
          aria-controls="panel"
          tabIndex={chosen === name ? 0 : -1}
          key={name}
          onClick={() => onChoose(name)}
        >
          {name}
        </button>
      ))}
    </div>
  );
}

// --- toasts ---

interface Toast {
  id: number;
  text: string;
  tone: "ok" | "bad";
}

const toasts = signal<Toast[]>([]);
let nextToast = 0;

export function toast(text: string, tone: "ok" | "bad" = "ok"): void {
  const id = nextToast++;
  toasts.value = [...toasts.value.slice(-3), { id, text, tone }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((one) => one.id !== id);
  }, 6000);
}

export const failed = (error: unknown): void =>
  toast(error instanceof Problem ? `${error.title}. ${error.detail}` : String(error), "bad");

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <div key={one.id} class={`toast tone-${one.tone}`}>
          {one.text}
        </div>
      ))}
    </div>
  );
}

// --- dialogs ---

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  // With the drawing, not after it: the next key of a person is for the dialog.
  useLayoutEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    // A dialog that is closed by leaving it out of the page gives no focus back by itself.
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={props.wide ? "dialog card wide-dialog" : "dialog card"}
      aria-label={props.title}
      onClose={props.onClose}
      onClick={(event) => {
        if (event.target === element.current) element.current?.close();
      }}
    >
      <header>
        <h2 class="grow">{props.title}</h2>
        <button type="button" class="button quiet" aria-label="Close" onClick={() => element.current?.close()}>
          ✕
        </button>
      </header>
      <div class="body">{props.children}</div>
    </dialog>
  );
}
