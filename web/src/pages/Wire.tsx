// Every message as it passes. The list holds the newest ones; while it is paused, it counts what it does not show.

import { signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { StreamEvent } from "../api/types";
import { onChanges } from "../live/stream";
import { go, place } from "../router";
import { Choice, Search } from "../ui/Filters";
import { bytes, clock, humanKind, number, plural } from "../ui/format";
import { AgentLink, Empty, Protocol, TaskLink } from "../ui/parts";
import { useRows } from "../ui/selection";
import { VirtualList } from "../ui/VirtualList";

const MOST = 2000;

/** The newest messages since the dashboard was opened, whichever page was shown. */
const recent = signal<StreamEvent[]>([]);
onChanges(({ wire }) => {
  if (wire.length) recent.value = [...wire.slice().reverse(), ...recent.value].slice(0, MOST);
});

const keyOf = (row: StreamEvent): string => `${row.task_id}/${row.seq}`;

export function Wire() {
  const held = useSignal<StreamEvent[] | null>(null);
  const missed = useSignal(0);
  useEffect(
    () =>
      onChanges((changes) => {
        missed.value += changes.skipped + (held.value ? changes.wire.length : 0);
      }),
    [],
  );
  const rows = held.value ?? recent.value;
  const { query } = place.value;
  const text = (query.get("q") ?? "").toLowerCase();
  const shown = rows.filter(
    (row) =>
      (!query.get("protocol") || row.protocol === query.get("protocol")) &&
      (!query.get("agent") || row.agent === query.get("agent")) &&
      (!text || `${row.kind} ${row.text} ${row.task_id}`.toLowerCase().includes(text)),
  );
  const keys = shown.map(keyOf);
  const { current, at } = useRows(
    keys,
    (key) => go(`/tasks/${encodeURIComponent(key.slice(0, key.lastIndexOf("/")))}`),
    false,
  );
  return (
    <>
      <div class="page-head">
        <h1>Live wire</h1>
        <span class="muted small" role="status">
          {held.value ? "paused" : shown.length ? plural(shown.length, "message") : ""}
          {missed.value ? `, ${number(missed.value)} not shown` : ""}
        </span>
        <button
          type="button"
          class="button"
          aria-pressed={held.value !== null}
          onClick={() => {
            held.value = held.value ? null : recent.value;
            missed.value = 0;
          }}
        >
          {held.value ? "Go on" : "Pause"}
        </button>
      </div>
      <div class="row" role="search">
        <Search name="q" label="Search kind, text, task…" wide />
        <Choice name="protocol" label="Protocol" options={["chiffon", "agentmsg", "forge", "a2acp", "coven", "api"]} />
        <Search name="agent" label="Agent" />
      </div>
      <section class="card">
        {shown.length ? (
          <VirtualList
            rows={shown}
            rowHeight={34}
            label="Messages"
            head={
              <div class="cells head wire-grid" role="row">
                <span role="columnheader" class="wide">
                  At
                </span>
                <span role="columnheader">Protocol</span>
                <span role="columnheader">Message</span>
                <span role="columnheader" class="wide">
                  Agent
                </span>
                <span role="columnheader">Text</span>
                <span role="columnheader" class="wide">
                  Size
                </span>
                <span role="columnheader">Task</span>
              </div>
            }
            keyOf={keyOf}
            current={current}
            moved={at}
            render={(row, index) => (
              <div class={`cells wire-grid${current === index ? " current" : ""}`} data-row="" data-testid="wire-row" data-task={row.task_id}>
                <time role="cell" class="mono small muted" dateTime={row.at}>
                  {clock(row.at)}
                </time>
                <span role="cell">
                  <Protocol name={row.protocol} />
                </span>
                <strong role="cell" class="cut">
                  {humanKind(row.kind)}
                </strong>
                <span role="cell" class="cut wide">
                  <AgentLink id={row.agent} />
                </span>
                <span role="cell" class="cut muted">
                  {row.text}
                </span>
                <span role="cell" class="small muted wide">
                  {row.bytes ? bytes(row.bytes) : ""}
                </span>
                <span role="cell">
                  <TaskLink id={row.task_id} opens />
                </span>
              </div>
            )}
          />
        ) : (
          <Empty title={rows.length ? "No message fits these filters" : "Nothing has passed since this page was opened"}>
            <p>
              {rows.length
                ? "Clear the filters, or wait: what fits appears by itself."
                : "Messages appear here as agents and callers send them. What passed before is with each task."}
            </p>
          </Empty>
        )}
      </section>
    </>
  );
}
