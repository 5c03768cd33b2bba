import type { Overview as Data } from "../api/types";
import { Plot } from "../plots/Plot";
import { place, withQuery } from "../router";
import { ago, number, plural, readable, shortDuration } from "../ui/format";
import { AgentLink, Ago, Empty, ErrorBox, Route, Status, TaskLink, now } from "../ui/parts";
import { useView } from "../ui/view";

const RANGES = { "15m": "15 min", "1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days", "30d": "30 days" };
const TILES = ["queued", "running", "waiting", "completed", "failed"] as const;
/** The figures are for the eye: every two seconds is often enough, however busy the hub is. */
const PAUSE = 2050;
const MOST_AGENTS = 8;

export function Overview() {
  const range = place.value.query.get("range") ?? "15m";
  const view = useView<Data>("/overview", { range }, () => true, PAUSE);
  const data = view.data;
  if (view.error && !data) return <ErrorBox error={view.error} onRetry={view.refresh} />;
  if (!data) return <p class="muted">Reading…</p>;
  const { series } = data;
  const line = (name: string) => series.values[name] ?? [];
  const oldest = data.waiting.oldest_at ? `, oldest ${ago(data.waiting.oldest_at, now.value).replace(" ago", "")}` : "";
  const text = data.waiting.open
    ? `${plural(data.waiting.open, "agent waits", "agents wait")} for you${oldest}`
    : data.verdict.text;
  return (
    <>
      <div class="page-head">
        <h1 class={`verdict tone-${data.verdict.level}`} data-testid="verdict">
          {data.waiting.open ? <a href="/inbox">{text}</a> : text}
        </h1>
        <div class="tabs" role="group" aria-label="Time shown">
          {Object.entries(RANGES).map(([one, words]) => (
            <button
              type="button"
              class="tab"
              aria-pressed={one === range}
              key={one}
              title={words}
              onClick={() => withQuery({ range: one })}
            >
              {one}
            </button>
          ))}
        </div>
      </div>
      {data.cluster ? <Nodes cluster={data.cluster} /> : null}
      <div class="tiles">
        <a class={`tile card first${data.waiting.open ? " tone-wait" : ""}`} href="/inbox">
          <span class="tile-value">{number(data.waiting.open)}</span>
          <span>for you</span>
        </a>
        {TILES.map((name) => {
          const count = data.counts[name] ?? 0;
          return (
            <a class={`tile card${name === "failed" && count ? " tone-bad" : ""}`} href={`/tasks?status=${name}`} key={name}>
              <span class="tile-value">{number(count)}</span>
              <span>{name}</span>
            </a>
          );
        })}
        <a class={`tile card${data.counts.deadletters ? " tone-bad" : ""}`} href="/deadletters">
          <span class="tile-value">{number(data.counts.deadletters ?? 0)}</span>
          <span>{data.counts.deadletters === 1 ? "dead letter" : "dead letters"}</span>
        </a>
      </div>
      <section class="card plots" aria-label="Figures over time">
        <Plot
          title="Tasks a second"
          at={series.at}
          least={1}
          format={(value) => (value < 10 ? value.toFixed(1) : number(Math.round(value)))}
          lines={[
            { label: "submitted", values: rate(line("submitted"), series.step_seconds), colour: "--run", area: true },
            { label: "completed", values: rate(line("completed"), series.step_seconds), colour: "--ok" },
            { label: "failed", values: rate(line("failed"), series.step_seconds), colour: "--bad" },
          ]}
        />
        <Plot
          title="Time to an outcome"
          at={series.at}
          least={0.1}
          format={shortDuration}
          lines={[
            { label: "p50", values: line("latency_p50"), colour: "--ok" },
            { label: "p95", values: line("latency_p95"), colour: "--wait" },
          ]}
        />
        <Plot
          title="Waiting in queues"
          at={series.at}
          least={4}
          format={whole}
          lines={[{ label: "tasks", values: line("queue_depth"), colour: "--run", area: true }]}
        />
        <Plot
          title="Retries and dead letters"
          at={series.at}
          least={4}
          format={whole}
          lines={[
            { label: "retries", values: line("retried"), colour: "--wait" },
            { label: "dead letters", values: line("dead_lettered"), colour: "--bad" },
          ]}
        />
        {Object.keys(series.costs).length ? (
          <Plot
            title="Cost by agent"
            at={series.at}
            least={0.01}
            format={dollars}
            lines={Object.entries(series.costs).map(([agent, values], index) => ({
              label: agent,
              values: [...values],
              colour: COLOURS[index % COLOURS.length] ?? "--run",
            }))}
          />
        ) : null}
      </section>
      <div class="overview-grid">
        <Failing tasks={data.failing} />
        <div class="stack">
          <section class="card">
            <header>
              <h2 class="grow">Traffic between protocols</h2>
              <span class="muted small">callers down, agents across</span>
            </header>
            <Traffic cells={data.traffic} />
          </section>
          <Agents data={data} />
        </div>
      </div>
    </>
  );
}

/** Of the plots with a line for each agent: those of the protocols, since agents have none of their own. */
const COLOURS = ["--p-coven", "--p-forge", "--p-a2acp", "--p-agentmsg", "--p-chiffon", "--p-api"];

const dollars = (value: number): string => `$${value < 1 ? value.toFixed(3).replace(/0$/, "") : value.toFixed(2)}`;

/** Who leads: one line, and nothing for a hub that is no node of a cluster. */
function Nodes({ cluster }: { cluster: NonNullable<Data["cluster"]> }) {
  const others = cluster.nodes.filter((node) => node.role !== "leader").map((node) => node.name);
  return (
    <p class={`cluster-line tone-${cluster.leader ? "ok" : "bad"}`} data-testid="cluster">
      <strong>{cluster.leader ? `${cluster.leader} leads` : "No node leads now"}</strong>
      <span class="muted">
        {" "}
        {cluster.realm}, epoch {cluster.epoch}
        {others.length ? ` · ${others.join(", ")} ${others.length === 1 ? "stands" : "stand"} by` : " · no other node stands by"}
      </span>
    </p>
  );
}

const whole = (value: number): string => number(Math.round(value));

const rate = (values: (number | null)[], step: number): (number | null)[] =>
  values.map((value) => (value === null ? null : value / step));

function Failing({ tasks }: { tasks: Data["failing"] }) {
  return (
    <section class="card">
      <header>
        <h2 class="grow">Failing now</h2>
        {tasks.length ? <a href="/tasks?status=failed">All that failed</a> : null}
      </header>
      {tasks.length ? (
        <ul class="rows">
          {tasks.map((task) => (
            <li key={task.id} class="failing" data-row="">
              <div class="row">
                <TaskLink id={task.id} opens />
                <strong class="grow cut">{task.type}</strong>
                <Route from={task.protocol_in} to={task.protocol_out} />
                <span class="small muted ago">
                  <Ago at={task.updated_at} />
                </span>
              </div>
              <p class="muted cut" title={task.error?.message}>
                {readable(task.error?.message ?? "", now.value)}
              </p>
            </li>
          ))}
        </ul>
      ) : (
        <Empty title="No task failed lately" />
      )}
    </section>
  );
}

function Agents({ data }: { data: Data }) {
  const figures = Object.entries(data.series.agents)
    .sort(([, one], [, other]) => other.completed + other.failed - one.completed - one.failed)
    .slice(0, MOST_AGENTS);
  const costs = figures.some(([, one]) => one.cost > 0);
  return (
    <section class="card">
      <header>
        <h2 class="grow">Agents</h2>
        <span class="row">
          {Object.entries(data.agents).map(([status, count]) => (
            <a href={`/agents?status=${encodeURIComponent(status)}`} key={status}>
              <Status status={status} detail={number(count)} />
            </a>
          ))}
        </span>
      </header>
      {data.breakers.length ? (
        <ul class="rows">
          {data.breakers.map((breaker) => (
            <li key={breaker.agent} class="line" data-row="">
              <AgentLink id={breaker.agent} opens />
              <Status status={breaker.state} detail="breaker" />
              <span class="grow muted small">{plural(breaker.failures, "failure")} in a row</span>
              {breaker.until ? <span class="small muted">until {new Date(breaker.until).toLocaleTimeString()}</span> : null}
            </li>
          ))}
        </ul>
      ) : null}
      {figures.length ? (
        <table class="figures">
          <thead>
            <tr>
              <th scope="col">Agent</th>
              <th scope="col">completed</th>
              <th scope="col">failed</th>
              {costs ? <th scope="col">cost</th> : null}
            </tr>
          </thead>
          <tbody>
            {figures.map(([id, one]) => (
              <tr key={id} data-row="">
                <th scope="row">
                  <AgentLink id={id} opens />
                </th>
                <td>{number(one.completed)}</td>
                <td class={one.failed ? "bad" : "muted"}>{number(one.failed)}</td>
                {costs ? <td>{one.cost ? dollars(one.cost) : "–"}</td> : null}
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <Empty title="No agent finished work in this time" />
      )}
    </section>
  );
}

function Traffic({ cells }: { cells: Data["traffic"] }) {
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
            <th scope="col">
              <span class="visually-hidden">Protocol of the caller</span>
            </th>
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
                  <td key={column} class={`heat-${weight}`} title={`${row} → ${column}: ${plural(count, "task")}`}>
                    {count ? <a href={`/tasks?protocol=${row}`}>{number(count)}</a> : <span class="muted">·</span>}
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
