import { useSignal } from "@preact/signals";
import { post } from "../api/client";
import type { Agent, AgentList, Credential } from "../api/types";
import { go, place } from "../router";
import { may } from "../session";
import { Choice, Search } from "../ui/Filters";
import { plural } from "../ui/format";
import { Ago, Copy, Dialog, Empty, ErrorBox, Protocol, Status, ViewOnly, failed } from "../ui/parts";
import { useRows } from "../ui/selection";
import { useView } from "../ui/view";

const PROTOCOLS = ["chiffon", "agentmsg", "forge", "a2acp", "coven"];

export function Agents() {
  const view = useView<AgentList>("/agents", {}, (changes) => changes.agents.length > 0);
  const adding = useSignal(false);
  const { query } = place.value;
  const search = (query.get("q") ?? "").toLowerCase();
  const agents = (view.data?.agents ?? []).filter(
    (agent) =>
      (!search || [agent.id, agent.name, agent.kind, ...(agent.work_types ?? [])].join(" ").toLowerCase().includes(search)) &&
      (!query.get("protocol") || agent.protocol === query.get("protocol")) &&
      (!query.get("status") || agent.status === query.get("status")),
  );
  const rows = useRows(
    agents.map((agent) => agent.id),
    (id) => go(`/agents/${encodeURIComponent(id)}`),
    view.reading,
  );
  return (
    <>
      <div class="page-head">
        <h1>Agents</h1>
        <span class="muted small" role="status">
          {view.data ? plural(agents.length, "agent") : ""}
        </span>
        {may("admin") ? (
          <button type="button" class="button primary" onClick={() => (adding.value = true)}>
            Add an agent
          </button>
        ) : null}
      </div>
      <div class="row" role="search">
        <Search name="q" label="Search id, name, kind, work…" wide />
        <Choice name="status" label="Status" options={["idle", "busy", "connecting", "offline", "paused"]} />
        <Choice name="protocol" label="Protocol" options={PROTOCOLS} />
      </div>
      <ViewOnly to="add, pause or remove an agent" />
      {view.error ? <ErrorBox error={view.error} onRetry={view.refresh} /> : null}
      <section class="card">
        {view.data && !agents.length ? (
          <Empty title={view.data.agents.length ? "No agent fits these filters" : "There is no agent yet"}>
            <p>
              Add one here, or type <code>dragoman agent add ID --protocol P</code>.
            </p>
          </Empty>
        ) : (
          <ul class="rows">
            {agents.map((agent, index) => (
              <AgentRow agent={agent} key={agent.id} current={rows.current === index} />
            ))}
          </ul>
        )}
      </section>
      {adding.value ? <AddAgent onClose={() => (adding.value = false)} onDone={view.refresh} /> : null}
    </>
  );
}

function AgentRow({ agent, current }: { agent: Agent; current: boolean }) {
  const load = agent.max_concurrent ? Math.min(1, agent.current_tasks.length / agent.max_concurrent) : 0;
  return (
    <li class={current ? "line agent-line current" : "line agent-line"} data-row="" data-testid="agent-row" data-id={agent.id}>
      <a class="agent-name" data-open="" href={`/agents/${encodeURIComponent(agent.id)}`}>
        {agent.id}
      </a>
      <Protocol name={agent.protocol} />
      <span class="row tight">
        <Status status={agent.status} />
        {agent.paused && agent.status !== "paused" ? <Status status="paused" /> : null}
        {agent.breaker.state !== "closed" ? <Status status={agent.breaker.state} detail="breaker" /> : null}
        {agent.untrusted ? <span class="tag">untrusted</span> : null}
      </span>
      <span class="cut muted works">{(agent.work_types ?? []).join(", ") || agent.name}</span>
      <span class="load" title={`${agent.current_tasks.length} of ${agent.max_concurrent} tasks`}>
        <meter min={0} max={1} value={load} aria-label={`Load of ${agent.id}`} />
        <span class="small muted">
          {agent.current_tasks.length}/{agent.max_concurrent}
        </span>
      </span>
      <span class="small muted seen">
        <Ago at={agent.last_seen} />
      </span>
    </li>
  );
}

export function AddAgent({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const given = useSignal<Credential | null>(null);
  return (
    <Dialog title="Add an agent" onClose={onClose}>
      {given.value ? (
        <div class="stack">
          {given.value.token ? (
            <>
              <p>
                The token of <strong>{given.value.agent_id}</strong>. It is shown once; the hub keeps only its hash.
              </p>
              <p class="row">
                <code class="token">{given.value.token}</code>
                <Copy text={given.value.token} />
              </p>
            </>
          ) : (
            <p>
              The hub runs <strong>{given.value.agent_id}</strong>; it needs no token.
            </p>
          )}
        </div>
      ) : (
        <form
          class="form"
          onSubmit={async (event) => {
            event.preventDefault();
            const form = new FormData(event.currentTarget);
            const text = (name: string) => String(form.get(name) ?? "").trim();
            const body: Record<string, unknown> = { agent_id: text("agent_id"), protocol: text("protocol") };
            if (text("kind")) body.kind = text("kind");
            if (text("domain")) body.domain = text("domain");
            if (text("command")) body.command = text("command").split(/\s+/);
            if (form.get("untrusted")) body.untrusted = true;
            try {
              given.value = await post<Credential>("/agents", body);
              onDone();
            } catch (problem) {
              failed(problem);
            }
          }}
        >
          <label>
            Id <input class="field" name="agent_id" required />
          </label>
          <label>
            Protocol
            <select class="field" name="protocol">
              {PROTOCOLS.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          <label>
            Kind <input class="field" name="kind" placeholder="optional" />
          </label>
          <label>
            Domain <input class="field" name="domain" placeholder="optional, for a2acp" />
          </label>
          <label>
            Command <input class="field" name="command" placeholder="optional: the hub runs it (forge)" />
          </label>
          <label class="row">
            <input type="checkbox" name="untrusted" /> Untrusted: run it in a sandbox
          </label>
          <button type="submit" class="button primary">
            Add
          </button>
        </form>
      )}
    </Dialog>
  );
}
