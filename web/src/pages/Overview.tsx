import type { Series, Task } from "../api/types";
import { Plot } from "../plots/Plot";
import { place, withQuery } from "../router";
import { ago, duration, number, plural } from "../ui/format";
import { AgentLink, Ago, Empty, ErrorBox, Route, Status, TaskLink, now } from "../ui/parts";
import { useView } from "../ui/view";

interface OverviewData {
  verdict: { level: "ok" | "wait" | "bad"; text: string };
  waiting: { open: number; oldest_at: string | null };
  failing: Task[];
  breakers: { agent: string; state: string; until: string | null; failures: number }[];
  counts: Record<string, number>;
  agents: Record<string, number>;
  traffic: { from: string; to: string; count: number }[];
  series: Series;
}

const RANGES = ["15m", "1h", "6h", "1d", "7d", "30d"];
const TILES = ["queued", "running", "waiting", "completed", "failed"] as const;

export function Overview() {
  const range = place.value.query.get("range") ?? "15m";
  const view = useView<OverviewData>("/overview", { range }, () => true);
  const data = view.data;
  if (view.error && !data) return <ErrorBox error={view.error} onRetry={view.refresh} />;
  if (!data) return <p class="muted">Reading…</p>;
  const { series } = data;
  const line = (name: string) => series.values[name] ?? [];
  const oldest = data.waiting.oldest_at ? `, oldest ${ago(data.waiting.oldest_at, now.value).replace(" ago", "")}` : "";
  return (
    <>
      <div class="page-head">
        <h1 class={`verdict tone-${data.verdict.level}`} data-testid="verdict">
          {data.waiting.open
            ? `${plural(data.waiting.open, "agent waits", "agents wait")} for you${oldest}`
            : data.verdict.text}
        </h1>
        <div class="tabs" role="group" aria-label="Time shown">
          {RANGES.map((one) => (
            <button type="button" class="tab" aria-pressed={one === range} key={one} onClick={() => withQuery({ range: one })}>
              {one}
            </button>
          ))}
        </div>
      </div>
      <div class="tiles">
        <a class="tile card" href="/inbox">
          <span class="tile-value">{number(data.waiting.open)}</span> waiting for a person
        </a>
        {TILES.map((name) => (
          <a class={`tile card ${name}`} href={`/tasks?status=${name}`} key={name}>
            <span class="tile-value">{number(data.counts[name] ?? 0)}</span> {name}
          </a>
        ))}
        <a class="tile card" href="/deadletters">
          <span class="tile-value">{number(data.counts.deadletters ?? 0)}</span> dead letters
        </a>
      </div>
      <div class="overview-grid">
        <section class="card">
          <header>
            <h2>Failing now</h2>
          </header>
          {data.failing.length ? (
            <ul class="rows">
              {data.failing.map((task) => (
                <li key={task.id} class="line">
                  <TaskLink id={task.id} />
                  <strong>{task.type}</strong>
                  <span class="grow cut muted" title={task.error?.message}>
                    {task.error?.message}
                  </span>
                  <Route from={task.protocol_in} to={task.protocol_out} />
                  <span class="small muted">
                    <Ago at={task.updated_at} />
                  </span>
                </li>
              ))}
            </ul>
          ) : (
            <Empty title="No task failed lately" />
          )}
        </section>
        <section class="card">
          <header>
            <h2>Breakers and agents</h2>
          </header>
          {data.breakers.length ? (
            <ul class="rows">
              {data.breakers.map((breaker) => (
                <li key={breaker.agent} class="line">
                  <AgentLink id={breaker.agent} />
                  <Status status={breaker.state} />
                  <span class="grow muted small">{plural(breaker.failures, "failure")}</span>
                  {breaker.until ? <span class="small muted">until {new Date(breaker.until).toLocaleTimeString()}</span> : null}
                </li>
              ))}
            </ul>
          ) : (
            <p class="body muted">Every breaker is closed.</p>
          )}
          <p class="body row">
            {Object.entries(data.agents).map(([status, count]) => (
              <a href={`/agents?status=${status}`} key={status}>
                <Status status={status} detail={String(count)} />
              </a>
            ))}
          </p>
        </section>
        <section class="card plots">
          <Plot
            title="Tasks a second"
            at={series.at}
            format={(value) => (value < 10 ? value.toFixed(1) : String(Math.round(value)))}
            lines={[
              { label: "submitted", values: rate(line("submitted"), series.step_seconds), colour: "--run", area: true },
              { label: "completed", values: rate(line("completed"), series.step_seconds), colour: "--ok" },
              { label: "failed", values: rate(line("failed"), series.step_seconds), colour: "--bad" },
            ]}
          />
          <Plot
            title="Time to an outcome"
            at={series.at}
            format={duration}
            lines={[
              { label: "p50", values: line("latency_p50"), colour: "--ok" },
              { label: "p95", values: line("latency_p95"), colour: "--wait" },
            ]}
          />
          <Plot
            title="Waiting in queues"
            at={series.at}
            format={(value) => number(Math.round(value))}
            lines={[{ label: "tasks", values: line("queue_depth"), colour: "--run", area: true }]}
          />
          <Plot
            title="Retries and dead letters"
            at={series.at}
            format={(value) => number(Math.round(value))}
            lines={[
              { label: "retries", values: line("retried"), colour: "--wait" },
              { label: "dead letters", values: line("dead_lettered"), colour: "--bad" },
            ]}
          />
        </section>
        <section class="card">
          <header>
            <h2>Traffic between protocols</h2>
          </header>
          <Traffic cells={data.traffic} />
        </section>
      </div>
    </>
  );
}

const rate = (values: (number | null)[], step: number): (number | null)[] =>
  values.map((value) => (value === null ? null : value / step));

function Traffic({ cells }: { cells: OverviewData["traffic"] }) {
  const from = [...new Set(cells.map((cell) => cell.from))].sort();
  const to = [...new Set(cells.map((cell) => cell.to))].sort();
  const most = Math.max(1, ...cells.map((cell) => cell.count));
  const at = new Map(cells.map((cell) => [`${cell.from} ${cell.to}`, cell.count]));
  if (!cells.length) return <Empty title="No task crossed the hub in this time" />;
  return (
    <div class="scroll-x" tabIndex={0} role="group" aria-label="Traffic, scrollable">
      <table class="traffic">
        <thead>
          <tr>
            <th scope="col">caller ↓ agent →</th>
            {to.map((name) => (
              <th scope="col" key={name} class={`protocol p-${name}`}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {from.map((row) => (
            <tr key={row}>
              <th scope="row" class={`protocol p-${row}`}>
                {row}
              </th>
              {to.map((column) => {
                const count = at.get(`${row} ${column}`) ?? 0;
                const weight = count ? 1 + Math.round((4 * Math.log(count + 1)) / Math.log(most + 1)) : 0;
                return (
                  <td key={column} class={`heat-${weight}`}>
                    {count ? <a href={`/tasks?protocol=${row}`}>{number(count)}</a> : "·"}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
