// The frame: who is logged in, the navigation, the keyboard, and the page that the address names.

import { signal } from "@preact/signals";
import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { Problem, post } from "./api/client";
import { connection, deadLetters, openQuestions } from "./live/stream";
import { Agent } from "./pages/Agent";
import { Agents } from "./pages/Agents";
import { Audit } from "./pages/Audit";
import { Contracts } from "./pages/Contracts";
import { DeadLetters } from "./pages/DeadLetters";
import { Inbox } from "./pages/Inbox";
import { Login } from "./pages/Login";
import { Overview } from "./pages/Overview";
import { Playground } from "./pages/Playground";
import { Task } from "./pages/Task";
import { Tasks } from "./pages/Tasks";
import { Wire } from "./pages/Wire";
import { followLinks, go, match, path } from "./router";
import { enter, entry, me } from "./session";
import { Icon, type IconName } from "./ui/Icon";
import { openRow } from "./ui/openRow";
import { Dialog, Empty, ErrorBox, Toasts, failed } from "./ui/parts";
import { targetOf } from "./ui/selection";

const help = signal(false);
const more = signal(false);

interface Page {
  pattern: string;
  title: string;
  view: ComponentType<Record<string, string>>;
  /** `rest`: on a phone it is behind "More". */
  nav?: { icon: IconName; label: string; key: string; rest?: boolean };
}

const PAGES: Page[] = [
  { pattern: "/", title: "Overview", view: Overview, nav: { icon: "overview", label: "Overview", key: "o" } },
  { pattern: "/inbox", title: "Inbox", view: Inbox, nav: { icon: "inbox", label: "Inbox", key: "i" } },
  { pattern: "/tasks", title: "Tasks", view: Tasks, nav: { icon: "tasks", label: "Tasks", key: "t" } },
  { pattern: "/tasks/{id}", title: "Task", view: Task as unknown as ComponentType<Record<string, string>> },
  { pattern: "/agents", title: "Agents", view: Agents, nav: { icon: "agents", label: "Agents", key: "a" } },
  { pattern: "/agents/{id}", title: "Agent", view: Agent as unknown as ComponentType<Record<string, string>> },
  {
    pattern: "/deadletters",
    title: "Dead letters",
    view: DeadLetters,
    nav: { icon: "dead", label: "Dead letters", key: "d", rest: true },
  },
  {
    pattern: "/contracts",
    title: "Contracts",
    view: Contracts,
    nav: { icon: "contracts", label: "Contracts", key: "c", rest: true },
  },
  {
    pattern: "/playground",
    title: "Playground",
    view: Playground,
    nav: { icon: "playground", label: "Playground", key: "p", rest: true },
  },
  { pattern: "/wire", title: "Live wire", view: Wire, nav: { icon: "wire", label: "Live wire", key: "w", rest: true } },
  { pattern: "/audit", title: "Audit", view: Audit, nav: { icon: "audit", label: "Audit", key: "u", rest: true } },
];

export function App() {
  useEffect(() => {
    void enter();
    addEventListener("click", followLinks);
    addEventListener("click", openRow);
    addEventListener("auxclick", openRow);
    addEventListener("keydown", onKey);
  }, []);
  if (entry.value === "asking") return null;
  if (entry.value === "out") return <Login />;
  if (entry.value instanceof Problem) {
    return (
      <main class="page">
        <ErrorBox error={entry.value} onRetry={() => void enter()} />
      </main>
    );
  }
  const found = page(path.value);
  document.title = found ? `${found.page.title} · Dragoman` : "Not found · Dragoman";
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={skip}>
        Skip to the page
      </a>
      <Navigation />
      <main class="page" id="main" tabIndex={-1}>
        {found ? (
          <Guard key={path.value}>
            <found.page.view {...found.values} />
          </Guard>
        ) : (
          <Empty title="There is no such page">
            <a href="/">Go to the overview</a>
          </Empty>
        )}
      </main>
      <Toasts />
      {help.value ? <KeyHelp /> : null}
    </div>
  );
}

/** What a page throws while it is drawn stays with the page: the navigation works on, and the person reads what to do. */
class Guard extends Component<{ children: ComponentChildren }, { error: unknown }> {
  override state = { error: null };
  static override getDerivedStateFromError(error: unknown) {
    return { error };
  }
  override render() {
    const { error } = this.state;
    return error === null ? this.props.children : <ErrorBox error={error} onRetry={() => this.setState({ error: null })} />;
  }
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function page(at: string): { page: Page; values: Record<string, string> } | null {
  for (const one of PAGES) {
    const values = match(one.pattern, at);
    if (values) return { page: one, values };
  }
  return null;
}

function Navigation() {
  return (
    <nav aria-label="Pages">
      <a class="brand" href="/">
        <img src="/favicon.svg" alt="" />
        Dragoman
      </a>
      {PAGES.map((one) => (one.nav ? <PageLink page={one} key={one.pattern} /> : null))}
      <button type="button" class="nav-link more" aria-haspopup="dialog" onClick={() => (more.value = true)}>
        <Icon name="more" />
        <span>More</span>
        <Count pattern="/deadletters" />
      </button>
      <div class="nav-foot">
        <div class="connection" data-testid="connection" data-state={connection.value} role="status">
          {connection.value}
        </div>
        <Who />
      </div>
      {more.value ? (
        <Dialog title="More" onClose={() => (more.value = false)}>
          <div class="more-links" onClick={() => (more.value = false)}>
            {PAGES.map((one) => (one.nav?.rest ? <PageLink page={one} key={one.pattern} /> : null))}
            <Who />
          </div>
        </Dialog>
      ) : null}
    </nav>
  );
}

function PageLink({ page: { pattern, nav } }: { page: Page }) {
  if (!nav) return null;
  const current = pattern === "/" ? path.value === "/" : path.value === pattern || path.value.startsWith(`${pattern}/`);
  return (
    <a class={nav.rest ? "nav-link rest" : "nav-link"} href={pattern} aria-current={current ? "page" : undefined}>
      <Icon name={nav.icon} />
      <span>{nav.label}</span>
      <Count pattern={pattern} />
    </a>
  );
}

function Count({ pattern }: { pattern: string }) {
  const [count, unit] =
    pattern === "/inbox" ? [openQuestions.value, "open"] : pattern === "/deadletters" ? [deadLetters.value, "kept"] : [null, ""];
  if (!count) return null;
  return (
    <span class={pattern === "/inbox" ? "count" : "count bad"}>
      {count > 999 ? "999+" : count}
      <span class="visually-hidden"> {unit}</span>
    </span>
  );
}

function Who() {
  return (
    <div class="who row">
      <span class="muted grow cut" title={`${me.value?.name}, ${me.value?.role}`}>
        {me.value?.name === me.value?.role ? me.value?.name : `${me.value?.name} · ${me.value?.role}`}
      </span>
      <button
        type="button"
        class="button quiet"
        onClick={async () => {
          try {
            await post("/logout");
            location.assign("/");
          } catch (problem) {
            failed(problem);
          }
        }}
      >
        Log out
      </button>
    </div>
  );
}

const MOVES: [string, string][] = [
  ["/", "Search in this page"],
  ["j  k", "Next, previous row"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["g then o i t a d c p w u", "Overview, inbox, tasks, agents, dead letters, contracts, playground, wire, audit"],
  ["?", "This help"],
  ["Esc", "Close, leave a field"],
];

function KeyHelp() {
  return (
    <Dialog title="Keyboard" onClose={() => (help.value = false)}>
      <dl class="keys">
        {MOVES.map(([key, what]) => (
          <>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </>
        ))}
      </dl>
    </Dialog>
  );
}

let going = Number.NEGATIVE_INFINITY;

function onKey(event: KeyboardEvent): void {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const target = targetOf(event);
  if (target.closest("dialog")) return;
  if (target.matches("input, textarea, select")) {
    if (event.key === "Escape") {
      event.preventDefault(); // else the browser empties a search field, and the list stays filtered
      target.blur();
    }
    return;
  }
  // When the keys were pressed: a page that was busy in between does not part them.
  if (event.timeStamp - going < 1500) {
    going = Number.NEGATIVE_INFINITY;
    const wanted = PAGES.find((one) => one.nav?.key === event.key);
    if (wanted) {
      event.preventDefault();
      go(wanted.pattern);
    }
    return;
  }
  if (event.key === "g") going = event.timeStamp;
  else if (event.key === "?") help.value = true;
  else if (event.key === "/") {
    const field = document.querySelector<HTMLInputElement>("[data-search]");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  }
}
