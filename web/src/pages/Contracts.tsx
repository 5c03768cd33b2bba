import { useSignal } from "@preact/signals";
import { get, post } from "../api/client";
import type { Contract, ContractList } from "../api/types";
import { place } from "../router";
import { may } from "../session";
import { Choice } from "../ui/Filters";
import { duration, plural } from "../ui/format";
import { AgentLink, Dialog, Empty, ErrorBox, Json, Status, failed, now, toast } from "../ui/parts";
import { useView } from "../ui/view";

const MOST = 500;

export function Contracts() {
  const standing = place.value.query.get("standing");
  const view = useView<ContractList>("/contracts", { limit: MOST });
  const open = useSignal<Contract | null>(null);
  const all = view.data?.contracts ?? [];
  const contracts = all.filter((contract) => !standing || contract.standing === standing);
  const show = async (id: string) => {
    try {
      open.value = await get<Contract>(`/contracts/${encodeURIComponent(id)}`);
    } catch (problem) {
      failed(problem);
    }
  };
  const end = async (contract: Contract) => {
    try {
      await post(`/contracts/${encodeURIComponent(contract.id)}/end`, { reason: "ended by a person" });
      toast("The contract ended; the hub informed both agents");
      view.refresh();
    } catch (problem) {
      failed(problem);
    }
  };
  return (
    <>
      <div class="page-head">
        <h1>Contracts</h1>
        <span class="muted small" role="status">
          {view.data ? plural(contracts.length, "contract") : ""}
        </span>
        <Choice name="standing" label="Standing" options={["active", "expired", "superseded", "terminated"]} />
      </div>
      {view.error ? <ErrorBox error={view.error} onRetry={view.refresh} /> : null}
      <section class="card">
        {view.data && !contracts.length ? (
          <Empty title={all.length ? "No contract has this standing" : "No agents have a contract"}>
            <p>Agents that speak a2acp agree on terms by a handshake before they work together.</p>
          </Empty>
        ) : (
          <ul class="rows">
            {contracts.map((contract) => {
              const left = (Date.parse(contract.expires_at) - now.value) / 1000;
              return (
                <li class="line contract" key={contract.id} data-testid="contract-row" data-id={contract.id}>
                  <AgentLink id={contract.source.agent} />
                  <span class="muted" aria-label="asks">
                    →
                  </span>
                  <AgentLink id={contract.target.agent} />
                  <strong class="grow cut">{contract.intent}</strong>
                  <Status status={contract.standing} />
                  {contract.pii ? <span class="tag">personal data</span> : null}
                  {contract.encryption !== "none" ? <span class="tag">{contract.encryption}</span> : null}
                  <span class="muted small">
                    {contract.standing === "active" && left > 0 ? `${duration(left)} left` : new Date(contract.expires_at).toLocaleString()}
                  </span>
                  <button type="button" class="button" onClick={() => show(contract.id)}>
                    Schemas
                  </button>
                  {contract.standing === "active" && may("operator") ? (
                    <button type="button" class="button danger" onClick={() => end(contract)}>
                      End
                    </button>
                  ) : null}
                </li>
              );
            })}
          </ul>
        )}
      </section>
      {open.value ? (
        <Dialog title={`${open.value.source.agent} → ${open.value.target.agent}: ${open.value.intent}`} onClose={() => (open.value = null)}>
          <div class="two-columns">
            <div>
              <h3>The caller sends</h3>
              <Json value={open.value.input_schema ?? {}} label="Input schema" />
            </div>
            <div>
              <h3>The agent answers</h3>
              <Json value={open.value.output_schema ?? {}} label="Output schema" />
            </div>
          </div>
        </Dialog>
      ) : null}
    </>
  );
}
