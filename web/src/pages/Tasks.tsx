import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, post } from "../api/client";
import type { Task, TaskList } from "../api/types";
import { onChanges, resets } from "../live/stream";
import { go, place, withQuery } from "../router";
import { may } from "../session";
import { Choice, Search } from "../ui/Filters";
import { number, plural } from "../ui/format";
import { AgentLink, Ago, Copy, Empty, ErrorBox, Route, Status, TaskLink, failed, toast } from "../ui/parts";
import { useRows } from "../ui/selection";
import { VirtualList } from "../ui/VirtualList";

const STATUSES = ["queued", "assigned", "running", "waiting", "completed", "failed", "cancelled"];
const PROTOCOLS = ["chiffon", "agentmsg", "forge", "a2acp", "coven", "api"];
const FILTERS = ["status", "type", "agent", "protocol", "q", "since"] as const;
const SINCE: Record<string, string> = { "15m": "15 minutes", "1h": "hour", "1d": "day", "7d": "7 days" };
const PAGE = 100;

export function Tasks() {
  const tasks = useSignal<Task[]>([]);
  const next = useSignal<string | null>(null);
  const total = useSignal<number | null>(null);
  const error = useSignal<unknown>(null);
  const loaded = useSignal(false);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, place.value.query.get(name)]));
  const key = JSON.stringify(filters);

  useEffect(() => {
    const abort = new AbortController();
    let busy = false;
    let dirty = false;
    let timer = 0;
    const read = async () => {
      if (busy) {
        dirty = true;
        return;
      }
      busy = true;
      dirty = false;
      try {
        const page = await get<TaskList & { total?: number | null }>("/tasks", { ...filters, limit: PAGE }, abort.signal);
        // Rows behind the first page stay: only the newest page is read again.
        const known = new Set(page.tasks.map((task) => task.id));
        const behind = loaded.value ? tasks.value.filter((task) => !known.has(task.id)) : [];
        const oldest = page.tasks.at(-1)?.created_at ?? "";
        tasks.value = [...page.tasks, ...(page.next ? behind.filter((task) => task.created_at < oldest) : [])];
        if (!loaded.value || !behind.length) next.value = page.next;
        total.value = page.total ?? null;
        error.value = null;
        loaded.value = true;
      } catch (problem) {
        if (!abort.signal.aborted) error.value = problem;
      } finally {
        busy = false;
        if (dirty && !abort.signal.aborted) soon();
      }
    };
    const soon = () => {
      if (timer) return;
      timer = setTimeout(() => {
        timer = 0;
        void read();
      }, 400) as unknown as number;
    };
    tasks.value = [];
    loaded.value = false;
    void read();
    const stop = onChanges((changes) => {
      // What is on the page changes at once; what may enter or leave the list is read again.
      const rows = new Map(changes.tasks.map((row) => [row.id, row]));
      let known = 0;
      tasks.value = tasks.value.map((task) => {
        const row = rows.get(task.id);
        if (!row) return task;
        known += 1;
        return { ...task, ...(row as Partial<Task>) };
      });
      if (known < rows.size || changes.more || filters.status) soon();
    });
    const first = resets.peek();
    const stopResets = resets.subscribe((count) => {
      if (count !== first) soon();
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
      stop();
      stopResets();
    };
  }, [key]);

  const more = async () => {
    const cursor = next.value;
    if (!cursor) return;
    next.value = null;
    try {
      const page = await get<TaskList>("/tasks", { ...filters, limit: PAGE, cursor });
      const known = new Set(tasks.value.map((task) => task.id));
      tasks.value = [...tasks.value, ...page.tasks.filter((task) => !known.has(task.id))];
      next.value = page.next;
    } catch (problem) {
      next.value = cursor;
      failed(problem);
    }
  };

  const ids = tasks.value.map((task) => task.id);
  const rows = useRows(ids, (id) => go(`/tasks/${id}`));
  const chosen = ids.filter((id) => rows.chosen.has(id));
  const bulk = async (action: "retry" | "cancel") => {
    try {
      const answer = await post<{ done: string[]; failed: unknown[] }>("/tasks/bulk", { action, ids: chosen });
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
          {total.value !== null ? `${number(total.value)} found` : next.value ? `${number(ids.length)}+ shown` : plural(ids.length, "task")}
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
      {error.value ? <ErrorBox error={error.value} /> : null}
      <section class="card">
        {loaded.value && !ids.length ? (
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
            rows={tasks.value}
            rowHeight={44}
            label="Tasks"
            keyOf={(task) => task.id}
            onEnd={more}
            head={
              <div class="cells head tasks-grid" role="row">
                <span role="columnheader" aria-label="Select" />
                <span role="columnheader">Task</span>
                <span role="columnheader">Status</span>
                <span role="columnheader" class="wide">
                  Way
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
                  <TaskLink id={task.id} /> <strong class="task-type">{task.type}</strong>{" "}
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
