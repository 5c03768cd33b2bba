import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { post, remove } from "../api/client";
import type { AgentView, Credential } from "../api/types";
import { go } from "../router";
import { may } from "../session";
import { bytes, clock, humanKind, plural, readable } from "../ui/format";
import { Ago, Copy, Dialog, Empty, ErrorBox, Json, Payload, Protocol, Status, TaskLink, ViewOnly, failed, now, toast } from "../ui/parts";
import { useView } from "../ui/view";

function Capabilities({ agent }: { agent: AgentView["agent"] }) {
  const offers = agent.offers ?? []; // fields with their default are left out of the answer
  const offered = new Set(offers.map((offer) => offer.intent));
  const plain = (agent.work_types ?? []).filter((work) => !offered.has(work));
  return (
    <section class="card" data-testid="agent-capabilities">
      <header>
        <h2 class="grow">Capabilities</h2>
        {agent.capabilities.map((one) => (
          <span class="tag" key={one}>
            {one}
          </span>
        ))}
      </header>
      {offered.size + plain.length ? (
        <ul class="rows">
          {offers.map((offer) => (
            <li class="offer" key={offer.intent}>
              <details>
                <summary>
                  <strong>{offer.intent}</strong> <span class="muted">{offer.description}</span>
                  <span class="row tight">
                    <span class="tag">{offer.version ?? "1.0.0"}</span>
                    {offer.pii ? <span class="tag">personal data</span> : null}
                    {(offer.required_capabilities ?? []).map((one) => (
                      <span class="tag" key={one}>
                        needs {one}
                      </span>
                    ))}
                  </span>
                </summary>
                <div class="two-columns">
                  <div class="stack-s">
                    <h3>Takes</h3>
                    <Json value={offer.input_schema} label={`What ${offer.intent} takes`} />
                  </div>
                  <div class="stack-s">
                    <h3>Gives</h3>
                    <Json value={offer.output_schema ?? true} label={`What ${offer.intent} gives`} />
                  </div>
                </div>
              </details>
            </li>
          ))}
          {plain.map((work) => (
            <li class="offer row" key={work}>
              <strong class="grow">{work}</strong>
              <a class="small" href={`/playground?agent=${encodeURIComponent(agent.id)}&work=${encodeURIComponent(work)}`}>
                Call
              </a>
            </li>
          ))}
        </ul>
      ) : (
        <p class="body muted">It declared none, so it gets any work of its kind{agent.kind ? ` (${agent.kind})` : ""}.</p>
      )}
    </section>
  );
}

function Connections({ agent }: { agent: AgentView["agent"] }) {
  const connections = agent.connections ?? [];
  return (
    <section class="card" data-testid="agent-connections">
      <header>
        <h2 class="grow">Connections</h2>
        <span class="muted small">the newest first</span>
      </header>
      {connections.length ? (
        <ol class="rows">
          {connections.map((change, index) => (
            <li class="line" key={`${change.at} ${index}`}>
              <Status status={change.event} />
              <span class="grow muted small wrap">{readable(change.why, now.value)}</span>
              <span class="small muted">
                <Ago at={change.at} />
              </span>
            </li>
          ))}
        </ol>
      ) : (
        <p class="body muted">
          It had no lasting connection. An agent that polls over HTTP needs none: the hub notes when it saw it last.
        </p>
      )}
    </section>
  );
}

/** What an agent reported about itself, and the process that the hub runs for it. */
function Process({ agent }: { agent: AgentView["agent"] }) {
  const { child, reported, pending } = agent;
  if (!child && !reported && !pending) return null;
  const facts: [string, ComponentChildren][] = [
    ["Command", child ? <code>{child.command.join(" ")}</code> : null],
    ["Process", child?.pid ? `${child.pid}, since ${new Date(child.since).toLocaleString()}` : child ? child.state : null],
    ["Restarts", child ? `${child.restarts} (${child.restart})` : null],
    ["Last end", child?.last_end],
    ["Directory", child?.cwd],
    ["Environment", child?.env.length ? child.env.join(", ") : null],
    ["Reported", reported ? <Ago at={reported.at} /> : null],
    ["Held for it", pending ? `${bytes(pending.bytes)} in messages and state` : null],
  ];
  return (
    <section class="card" data-testid="agent-process">
      <header>
        <h2>{child ? "Process" : "What it reported"}</h2>
      </header>
      <div class="body stack">
        <dl class="facts">
          {facts.map(([name, value]) =>
            value ? (
              <>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </>
            ) : null,
          )}
        </dl>
        {reported ? <Payload value={reported.status} label="Reported status" /> : null}
        {reported?.errors.length ? (
          <div class="stack-s">
            <h3>Its last errors</h3>
            <Json value={reported.errors} label="Its last errors" />
          </div>
        ) : null}
      </div>
    </section>
  );
}

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
    ["Kind", agent.kind],
    ["Role", agent.role],
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
          {agent.paused && agent.status !== "paused" ? <Status status="paused" /> : null}
        </h1>
        <div class="row">
          <a class="button" href={`/playground?agent=${encodeURIComponent(id)}`}>
            Call
          </a>
          {may("operator") ? (
            agent.paused ? (
              <button type="button" class="button" data-testid="agent-resume" onClick={() => act("resume", "The agent gets work again")}>
                Resume
              </button>
            ) : (
              <button type="button" class="button" data-testid="agent-pause" onClick={() => act("pause", "The agent gets no new work")}>
                Pause
              </button>
            )
          ) : null}
          {may("admin") ? (
            <>
              {agent.child ? null : (
                <button type="button" class="button" onClick={() => act("token", "The old token ended")}>
                  New token
                </button>
              )}
              <button type="button" class="button danger" onClick={() => (removing.value = true)}>
                Remove
              </button>
            </>
          ) : null}
        </div>
      </div>
      <ViewOnly to="pause or remove an agent" />
      <section class="card">
        {agent.name && agent.name !== agent.id ? <p class="body agent-says">{agent.name}</p> : null}
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
      <Capabilities agent={agent} />
      <section class="card">
        <header>
          <h2 class="grow">Last tasks</h2>
          <a href={`/tasks?agent=${encodeURIComponent(id)}`}>All of them</a>
        </header>
        {tasks.length ? (
          <ul class="rows">
            {tasks.map((task) => (
              <li class="line agent-task" data-row="" key={task.id}>
                <TaskLink id={task.id} opens />
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
          <Empty title="It had no task yet">
            <p>
              <a href={`/playground?agent=${encodeURIComponent(id)}`}>Send it one from the playground</a>
            </p>
          </Empty>
        )}
      </section>
      <div class="two-columns">
        <Connections agent={agent} />
        <Process agent={agent} />
      </div>
      <section class="card">
        <header>
          <h2 class="grow">{agent.child ? "Log of its process" : "Log"}</h2>
          <span class="muted small">{logs.length ? `the last ${plural(logs.length, "line")}` : ""}</span>
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
