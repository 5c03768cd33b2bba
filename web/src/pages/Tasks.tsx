import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Problem, get, post } from "../api/client";
import type { BulkResult, TaskList } from "../api/types";
import { onChanges } from "../live/stream";
import { go, place, withQuery } from "../router";
import { may } from "../session";
import { Choice, Search } from "../ui/Filters";
import { number, plural } from "../ui/format";
import { AgentLink, Ago, Copy, Empty, ErrorBox, Route, Status, TaskLink, ViewOnly, failed, toast } from "../ui/parts";
import { reader } from "../ui/reader";
import { useRows } from "../ui/selection";
import { onResets } from "../ui/view";
import { VirtualList } from "../ui/VirtualList";
import { type Rows, withChanges, withNewest, withOlder } from "./taskRows";

const STATUSES = ["queued", "assigned", "running", "waiting", "completed", "failed", "cancelled"];
const PROTOCOLS = ["chiffon", "agentmsg", "forge", "a2acp", "coven", "api"];
const FILTERS = ["status", "type", "agent", "protocol", "q", "since"] as const;
const SINCE: Record<string, string> = { "15m": "15 minutes", "1h": "hour", "1d": "day", "7d": "7 days" };
const PAGE = 100;
const PAUSE = 1000;

export function Tasks() {
  const known = useSignal<Rows>({ rows: [], next: null });
  const total = useSignal<number | null>(null);
  const searched = useSignal<string | null>(null);
  const error = useSignal<unknown>(null);
  const loaded = useSignal(false);
  const frame = useRef<HTMLDivElement>(null);
  const reading = useRef(false);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, place.value.query.get(name)]));
  const key = JSON.stringify(filters);

  useEffect(() => {
    const own = reader(async (signal) => {
      try {
        const page = await get<TaskList>("/tasks", { ...filters, limit: PAGE }, signal);
        if (signal.aborted) return;
        known.value = withNewest(known.value, page, (frame.current?.scrollTop ?? 0) > 0);
        total.value = page.total ?? null;
        searched.value = page.searched ?? null;
        error.value = null;
        loaded.value = true;
      } catch (problem) {
        if (signal.aborted) return;
        if (!(problem instanceof Problem && problem.kind === "unreachable" && loaded.value)) error.value = problem;
      }
    }, PAUSE);
    known.value = { rows: [], next: null };
    loaded.value = false;
    own.now();
    const stopChanges = onChanges((changes) => {
      // What is on the page changes at once; what may enter or leave the list is read again.
      const { rows, others } = withChanges(known.value.rows, changes);
      if (rows !== known.value.rows) known.value = { ...known.value, rows };
      if (others || (filters.status && changes.tasks.length)) own.soon();
    });
    const stopResets = onResets(own.soon);
    return () => {
      own.stop();
      stopChanges();
      stopResets();
    };
  }, [key]);

  const more = async () => {
    const cursor = known.value.next;
    if (!cursor || reading.current) return;
    reading.current = true;
    try {
      const page = await get<TaskList>("/tasks", { ...filters, limit: PAGE, cursor });
      if (known.value.next === cursor) known.value = withOlder(known.value, page);
    } catch (problem) {
      failed(problem);
    } finally {
      reading.current = false;
    }
  };

  const ids = known.value.rows.map((task) => task.id);
  const rows = useRows(ids, (id) => go(`/tasks/${encodeURIComponent(id)}`), !loaded.value && !error.value);
  const chosen = ids.filter((id) => rows.chosen.has(id));
  const bulk = async (action: "retry" | "cancel") => {
    try {
      const answer = await post<BulkResult>("/bulk/tasks", { action, ids: chosen });
      const word = action === "retry" ? "retried" : "cancelled";
      toast(`${plural(answer.done.length, "task")} ${word}${answer.failed.length ? `, ${answer.failed.length} refused` : ""}`);
      rows.choose([]);
    } catch (problem) {
      failed(problem);
    }
  };
  const filtered = FILTERS.some((name) => filters[name]);
  const command = `dragoman task ls${FILTERS.map((name) => (filters[name] ? ` --${name === "q" ? "search" : name} ${quote(filters[name] as string)}` : "")).join("")}`;
  return (
    <>
      <div class="page-head">
        <h1>Tasks</h1>
        <span class="muted small" role="status">
          {total.value !== null
            ? `${number(total.value)} found`
            : known.value.next
              ? `${number(ids.length)} shown, more below`
              : plural(ids.length, "task")}
          {searched.value ? (
            <>
              {" "}
              (searched back to <Ago at={searched.value} />, older tasks follow)
            </>
          ) : null}
        </span>
        <Copy text={command} label="Copy as CLI" />
      </div>
      <div class="row" role="search">
        <Search name="q" label="Search id, name, type, error…" wide />
        <Choice name="status" label="Status" options={STATUSES} />
        <Choice name="protocol" label="Protocol" options={PROTOCOLS} />
        <Search name="type" label="Type" />
        <Search name="agent" label="Agent" />
        <Choice name="since" label="Since" options={Object.keys(SINCE)} />
        {filtered ? (
          <button
            type="button"
            class="button quiet"
            onClick={() => withQuery(Object.fromEntries(FILTERS.map((name) => [name, null])))}
          >
            Clear
          </button>
        ) : null}
      </div>
      {chosen.length ? (
        <div class="row bulk" role="toolbar" aria-label="Selected tasks">
          <strong>{plural(chosen.length, "task")} selected</strong>
          <button type="button" class="button" disabled={!may("operator")} onClick={() => bulk("retry")}>
            Retry
          </button>
          <button type="button" class="button danger" disabled={!may("operator")} onClick={() => bulk("cancel")}>
            Cancel
          </button>
          <button type="button" class="button quiet" onClick={() => rows.choose([])}>
            Clear selection
          </button>
        </div>
      ) : null}
      <ViewOnly to="retry or cancel tasks" />
      {error.value ? <ErrorBox error={error.value} /> : null}
      <section class="card">
        {loaded.value && !ids.length && known.value.next ? (
          <Empty title="None of the newest tasks fits these filters">
            <button type="button" class="button" onClick={more}>
              Look through older tasks
            </button>
          </Empty>
        ) : loaded.value && !ids.length ? (
          <Empty title={filtered ? "No task fits these filters" : "There is no task yet"}>
            {filtered ? (
              <p>Clear the filters, or search for something else.</p>
            ) : (
              <p>
                Send one from the <a href="/playground">playground</a>, or type <code>dragoman call AGENT WORK</code>.
              </p>
            )}
          </Empty>
        ) : (
          <VirtualList
            rows={known.value.rows}
            frame={frame}
            rowHeight={44}
            label="Tasks"
            keyOf={(task) => task.id}
            current={rows.current}
            moved={rows.at}
            onEnd={more}
            head={
              <div class="cells head tasks-grid" role="row">
                <span role="columnheader">
                  <span class="visually-hidden">Selected</span>
                </span>
                <span role="columnheader">Task</span>
                <span role="columnheader">Status</span>
                <span role="columnheader" class="wide">
                  From → to
                </span>
                <span role="columnheader" class="wide">
                  Agent
                </span>
                <span role="columnheader">Begun</span>
              </div>
            }
            render={(task, index) => (
              <div
                class={`cells tasks-grid${rows.current === index ? " current" : ""}`}
                data-row=""
                data-testid="task-row"
                data-id={task.id}
                data-status={task.status}
              >
                <span role="cell">
                  <input
                    type="checkbox"
                    aria-label={`Select task ${task.id}`}
                    checked={rows.chosen.has(task.id)}
                    onChange={() => rows.toggle(task.id)}
                  />
                </span>
                <span role="cell" class="cut">
                  <TaskLink id={task.id} opens /> <a class="task-type" href={`/tasks/${encodeURIComponent(task.id)}`}>
                    {task.type}
                  </a>{" "}
                  <span class="muted">{task.name ?? ""}</span>
                </span>
                <span role="cell">
                  <Status
                    status={task.status}
                    testid="task-status"
                    detail={task.status === "running" && task.progress ? `${task.progress} %` : task.waiting}
                  />
                </span>
                <span role="cell" class="wide">
                  <Route from={task.protocol_in} to={task.protocol_out} />
                </span>
                <span role="cell" class="wide cut">
                  <AgentLink id={task.agent} />
                </span>
                <span role="cell" class="muted small">
                  <Ago at={task.created_at} />
                </span>
              </div>
            )}
          />
        )}
      </section>
    </>
  );
}

const quote = (text: string): string => (/^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
