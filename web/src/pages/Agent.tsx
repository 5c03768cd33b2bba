import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { post, remove } from "../api/client";
import type { AgentView, Credential } from "../api/types";
import { go } from "../router";
import { may } from "../session";
import { clock, humanKind, plural } from "../ui/format";
import { Ago, Copy, Dialog, Empty, ErrorBox, Json, Protocol, Status, TaskLink, failed, toast } from "../ui/parts";
import { useView } from "../ui/view";

export function Agent({ id }: { id: string }) {
  const path = `/agents/${encodeURIComponent(id)}`;
  const view = useView<AgentView>(`${path}/view`, {}, (changes) => changes.agents.some((one) => one.id === id));
  const token = useSignal<string | null>(null);
  const removing = useSignal(false);
  if (view.error && !view.data) return <ErrorBox error={view.error} onRetry={view.refresh} />;
  if (!view.data) return <p class="muted">Reading…</p>;
  const { agent, tasks, logs } = view.data;
  const act = async (verb: string, done: string) => {
    try {
      const answer = await post<Partial<Credential>>(`${path}/${verb}`);
      if (verb === "token" && answer.token) token.value = answer.token;
      toast(done);
      view.refresh();
    } catch (problem) {
      failed(problem);
    }
  };
  const facts: [string, ComponentChildren][] = [
    [
      "Protocol",
      <>
        <Protocol name={agent.protocol} /> {agent.protocol_version}
      </>,
    ],
    ["Does", (agent.work_types ?? []).join(", ") || "not declared"],
    ["Load", `${agent.current_tasks.length} of ${agent.max_concurrent}`],
    [
      "Breaker",
      <Status status={agent.breaker.state} detail={agent.breaker.failures ? plural(agent.breaker.failures, "failure") : null} />,
    ],
    ["Last seen", <Ago at={agent.last_seen} />],
    ["Domain", agent.domain],
    ["Version", agent.version],
    ["Sandbox", agent.sandbox ?? (agent.untrusted ? "untrusted" : null)],
  ];
  return (
    <>
      <div class="page-head">
        <h1 class="row">
          {agent.id} <Status status={agent.status} />
        </h1>
        <div class="row">
          <a class="button" href={`/playground?agent=${encodeURIComponent(id)}`}>
            Call
          </a>
          {may("operator") ? (
            agent.paused ? (
              <button type="button" class="button" onClick={() => act("resume", "The agent gets work again")}>
                Resume
              </button>
            ) : (
              <button type="button" class="button" onClick={() => act("pause", "The agent gets no new work")}>
                Pause
              </button>
            )
          ) : null}
          {may("admin") ? (
            <>
              <button type="button" class="button" onClick={() => act("token", "The old token ended")}>
                New token
              </button>
              <button type="button" class="button danger" onClick={() => (removing.value = true)}>
                Remove
              </button>
            </>
          ) : null}
        </div>
      </div>
      <section class="card">
        <dl class="strip body">
          {facts
            .filter(([, value]) => value !== null)
            .map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ))}
        </dl>
      </section>
      {agent.offers?.length ? (
        <section class="card">
          <header>
            <h2>Capabilities</h2>
          </header>
          <div class="body stack">
            {agent.offers?.map((offer) => (
              <details key={offer.intent}>
                <summary>{offer.intent}</summary>
                <div class="two-columns">
                  <Json value={offer.input_schema ?? {}} label="Input schema" />
                  <Json value={offer.output_schema ?? {}} label="Output schema" />
                </div>
              </details>
            ))}
          </div>
        </section>
      ) : null}
      <section class="card">
        <header>
          <h2 class="grow">Last tasks</h2>
          <a href={`/tasks?agent=${encodeURIComponent(id)}`}>All of them</a>
        </header>
        {tasks.length ? (
          <ul class="rows">
            {tasks.map((task) => (
              <li class="line agent-task" key={task.id}>
                <TaskLink id={task.id} />
                <strong>{task.type}</strong>
                <Status status={task.status} />
                <span class="grow cut muted">{task.name}</span>
                <span class="small muted">
                  <Ago at={task.created_at} />
                </span>
              </li>
            ))}
          </ul>
        ) : (
          <Empty title="It had no task yet" />
        )}
      </section>
      <section class="card">
        <header>
          <h2>Log</h2>
        </header>
        <pre class="block log" tabIndex={0} role="group" aria-label="Log">
          {logs.length
            ? logs.map((line) => `${clock(line.at)}  ${(line.level ?? humanKind(line.kind)).padEnd(10)} ${line.text}`).join("\n")
            : "Nothing was logged."}
        </pre>
      </section>
      {token.value ? (
        <Dialog title="New token" onClose={() => (token.value = null)}>
          <p class="row">
            <code class="token">{token.value}</code>
            <Copy text={token.value} />
          </p>
          <p class="muted">It is shown once. The old token ended, and with it the agent's connections.</p>
        </Dialog>
      ) : null}
      {removing.value ? (
        <Dialog title={`Remove ${id}?`} onClose={() => (removing.value = false)}>
          <div class="stack">
            <p>Its unfinished tasks go back to the queue, its contracts end, its token stops working.</p>
            <button
              type="button"
              class="button danger"
              onClick={async () => {
                try {
                  await remove(path);
                  go("/agents");
                } catch (problem) {
                  failed(problem);
                }
              }}
            >
              Remove the agent
            </button>
          </div>
        </Dialog>
      ) : null}
    </>
  );
}
