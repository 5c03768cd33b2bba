// Who works for whom on which terms, until when, and who did not keep to it.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { get, post } from "../api/client";
import type { Contract, ContractList } from "../api/types";
import { place, withQuery } from "../router";
import { may } from "../session";
import { Choice, Search } from "../ui/Filters";
import { duration, number, plural } from "../ui/format";
import { AgentLink, Ago, Dialog, Empty, ErrorBox, Json, Status, TaskLink, ViewOnly, failed, now, toast } from "../ui/parts";
import { useRows } from "../ui/selection";
import { useView } from "../ui/view";

const MOST = 500;
const LASTS: [string, number][] = [
  ["1 day", 24],
  ["1 week", 7 * 24],
  ["30 days", 30 * 24],
];

export function Contracts() {
  const { query } = place.value;
  const standing = query.get("standing");
  const agent = query.get("agent");
  const view = useView<ContractList>("/contracts", { limit: MOST, agent });
  const renewing = useSignal<Contract | null>(null);
  const ending = useSignal<Contract | null>(null);
  const all = view.data?.contracts ?? [];
  const contracts = all.filter((contract) => !standing || contract.standing === standing);
  const open = query.get("open");
  const rows = useRows(
    contracts.map((contract) => contract.id),
    (id) => withQuery({ open: id }),
    view.reading,
  );
  return (
    <>
      <div class="page-head">
        <h1>Contracts</h1>
        <span class="muted small" role="status">
          {!view.data
            ? ""
            : view.data.next
              ? `${plural(contracts.length, "contract")} among the newest ${number(MOST)}`
              : plural(contracts.length, "contract")}
        </span>
      </div>
      <div class="row" role="search">
        <Search name="agent" label="Agent" wide />
        <Choice name="standing" label="Standing" options={["active", "expired", "superseded", "terminated"]} />
      </div>
      <ViewOnly to="renew or end a contract" />
      {view.error ? <ErrorBox error={view.error} onRetry={view.refresh} /> : null}
      <section class="card">
        {view.data && !contracts.length ? (
          <Empty title={standing || agent ? "No contract fits these filters" : "No agents have a contract"}>
            <p>Agents that speak a2acp agree on terms by a handshake before they work together.</p>
          </Empty>
        ) : (
          <ul class="rows">
            {contracts.map((contract, index) => (
              <li class={rows.current === index ? "line contract current" : "line contract"} key={contract.id} data-row="" data-testid="contract-row" data-id={contract.id}>
                <span class="contract-who">
                  <span>
                    <AgentLink id={contract.source.agent} />{" "}
                    <span class="muted" aria-label="asks">
                      →
                    </span>{" "}
                    <AgentLink id={contract.target.agent} />
                  </span>
                  <strong class="cut">{contract.intent}</strong>
                </span>
                <span class="row tight">
                  <Status status={contract.standing} />
                  {contract.pii ? <span class="tag">personal data</span> : null}
                  {contract.encryption !== "none" ? <span class="tag">{contract.encryption}</span> : null}
                  {contract.violated ? <span class="tag bad">{plural(contract.violated, "violation")}</span> : null}
                </span>
                <span class="muted small contract-end" data-testid="contract-until">
                  <Until contract={contract} />
                </span>
                <span class="row tight actions">
                  <button type="button" class="button" data-open="" onClick={() => withQuery({ open: contract.id })}>
                    Terms
                  </button>
                  {contract.standing === "active" && may("operator") ? (
                    <>
                      <button type="button" class="button" data-testid="contract-renew" onClick={() => (renewing.value = contract)}>
                        Renew
                      </button>
                      <button type="button" class="button danger" data-testid="contract-end" onClick={() => (ending.value = contract)}>
                        End
                      </button>
                    </>
                  ) : null}
                </span>
              </li>
            ))}
          </ul>
        )}
      </section>
      {open ? <Terms id={open} key={open} onClose={() => withQuery({ open: null })} /> : null}
      {renewing.value ? <Renew contract={renewing.value} onClose={() => (renewing.value = null)} onDone={view.refresh} /> : null}
      {ending.value ? <End contract={ending.value} onClose={() => (ending.value = null)} onDone={view.refresh} /> : null}
    </>
  );
}

function Until({ contract }: { contract: Contract }) {
  const left = (Date.parse(contract.expires_at) - now.value) / 1000;
  const until = new Date(contract.expires_at).toLocaleString();
  if (contract.standing === "active" && left > 0) return <time title={until}>{duration(left)} left</time>;
  return (
    <>
      over since <Ago at={contract.standing === "expired" ? contract.expires_at : contract.since} />
    </>
  );
}

const named = ({ source, target, intent }: Contract): string => `${source.agent} → ${target.agent}: ${intent}`;

function Renew({ contract, onClose, onDone }: { contract: Contract; onClose: () => void; onDone: () => void }) {
  const hours = useSignal(String(LASTS[0]?.[1] ?? 24));
  return (
    <Dialog title={`Renew ${named(contract)}`} onClose={onClose}>
      <form
        class="form"
        onSubmit={async (event) => {
          event.preventDefault();
          try {
            const renewed = await post<Contract>(`/contracts/${encodeURIComponent(contract.id)}/renew`, { hours: Number(hours.value) });
            toast(`It lasts until ${new Date(renewed.expires_at).toLocaleString()}; the hub informed both agents`);
            onDone();
            onClose();
          } catch (problem) {
            failed(problem);
          }
        }}
      >
        <p class="muted">
          The terms and the id stay as they are, so neither agent has to agree again. It ends{" "}
          {new Date(contract.expires_at).toLocaleString()} now.
        </p>
        <label>
          How long from now, in hours
          <input
            class="field"
            type="number"
            min="0.1"
            max={24 * 366}
            step="any"
            required
            value={hours.value}
            onInput={(event) => (hours.value = event.currentTarget.value)}
          />
        </label>
        <div class="row tight" role="group" aria-label="Usual times">
          {LASTS.map(([words, count]) => (
            <button type="button" class="tab" key={words} aria-pressed={hours.value === String(count)} onClick={() => (hours.value = String(count))}>
              {words}
            </button>
          ))}
        </div>
        <button type="submit" class="button primary">
          Renew the contract
        </button>
      </form>
    </Dialog>
  );
}

function End({ contract, onClose, onDone }: { contract: Contract; onClose: () => void; onDone: () => void }) {
  const reason = useSignal("");
  return (
    <Dialog title={`End ${named(contract)}?`} onClose={onClose}>
      <form
        class="form"
        onSubmit={async (event) => {
          event.preventDefault();
          try {
            await post(`/contracts/${encodeURIComponent(contract.id)}/end`, { reason: reason.value.trim() || "ended by a person" });
            toast("The contract ended; the hub informed both agents");
            onDone();
            onClose();
          } catch (problem) {
            failed(problem);
          }
        }}
      >
        <p class="muted">{contract.source.agent} cannot ask on it any more. To go on, the two have to agree again.</p>
        <label>
          Reason, which both agents get
          <input class="field" maxLength={1000} value={reason.value} onInput={(event) => (reason.value = event.currentTarget.value)} />
        </label>
        <button type="submit" class="button danger">
          End the contract
        </button>
      </form>
    </Dialog>
  );
}

function Terms({ id, onClose }: { id: string; onClose: () => void }) {
  const contract = useSignal<Contract | null>(null);
  const error = useSignal<unknown>(null);
  useEffect(() => {
    get<Contract>(`/contracts/${encodeURIComponent(id)}`)
      .then((one) => {
        contract.value = one;
      })
      .catch((problem: unknown) => {
        error.value = problem;
      });
  }, [id]);
  const one = contract.value;
  const facts: [string, ComponentChildren][] = one
    ? [
        ["Standing", <Status status={one.standing} />],
        ["Asks", `${one.source.agent} ${one.source.version} of ${one.source.domain}`],
        ["Serves", `${one.target.agent} ${one.target.version} of ${one.target.domain}`],
        ["Agreed", new Date(one.created_at).toLocaleString()],
        ["Until", new Date(one.expires_at).toLocaleString()],
        ["Answers within", duration(one.timeout_seconds)],
        ["Requires", one.required_capabilities.join(", ")],
        ["Encrypted", one.encryption === "none" ? "" : `${one.encryption}${one.validated ? "" : ", only the two agents can read it"}`],
        ["Ended by", one.by],
        ["Reason", one.reason],
        ["Id", <code>{one.id}</code>],
      ]
    : [];
  return (
    <Dialog title={one ? named(one) : "Contract"} onClose={onClose} wide>
      {error.value ? <ErrorBox error={error.value} /> : null}
      {one ? (
        <div class="stack">
          <dl class="strip">
            {facts.map(([name, value]) =>
              value ? (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{value}</dd>
                </div>
              ) : null,
            )}
          </dl>
          <div class="two-columns">
            <div class="stack-s">
              <h3>What {one.source.agent} sends</h3>
              <Json value={one.input_schema ?? true} label="Input schema" />
            </div>
            <div class="stack-s">
              <h3>What {one.target.agent} answers</h3>
              <Json value={one.output_schema ?? true} label="Output schema" />
            </div>
          </div>
          <div class="stack-s" data-testid="contract-violations">
            <h3>Violations</h3>
            <Violations of={one} />
          </div>
        </div>
      ) : error.value ? null : (
        <p class="muted">Reading…</p>
      )}
    </Dialog>
  );
}

function Violations({ of: contract }: { of: Contract }) {
  const { violated = 0, violations = [] } = contract;
  if (!violated) return <p class="muted">Both sides kept to it.</p>;
  return (
    <>
      {violated > violations.length ? (
        <p class="muted small">
          The newest {violations.length} of {number(violated)}; the <a href="/audit?outcome=refused">audit</a> has all.
        </p>
      ) : null}
      <ul class="rows">
        {violations.map((one, index) => (
          <li class="line" key={index} data-testid="contract-violation">
            <AgentLink id={one.by} />
            <span class="grow why-error">{one.reason}</span>
            {one.task ? <TaskLink id={one.task} /> : <code class="muted small">{one.action}</code>}
            <span class="muted small">
              <Ago at={one.at} />
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}
