import type { AuditView } from "../api/types";
import { place } from "../router";
import { Choice, Search } from "../ui/Filters";
import { number } from "../ui/format";
import { Ago, Empty, ErrorBox, Status } from "../ui/parts";
import { useView } from "../ui/view";

export function Audit() {
  const { query } = place.value;
  const filters = { principal: query.get("who"), action: query.get("action"), outcome: query.get("outcome") };
  const view = useView<AuditView>("/audit/view", filters, () => false);
  const records = view.data?.records ?? [];
  const verdict = view.data?.verdict;
  const exported = new URLSearchParams();
  for (const [name, value] of Object.entries(filters)) if (value) exported.set(name, value);
  return (
    <>
      <div class="page-head">
        <h1>Audit</h1>
        <a class="button" href={`/api/v1/audit/export?${exported}`} download="audit.jsonl">
          Export
        </a>
        <button type="button" class="button" onClick={view.refresh}>
          Verify again
        </button>
      </div>
      {view.error ? <ErrorBox error={view.error} onRetry={view.refresh} /> : null}
      {verdict ? (
        <p class={`card body audit-verdict tone-${verdict.ok ? "ok" : "bad"}`} data-testid="audit-verdict" role="status">
          {verdict.ok
            ? `The chain of ${number(verdict.verified)} records is whole.`
            : `The chain is broken at record ${verdict.broken?.seq}: ${verdict.broken?.why}`}
        </p>
      ) : null}
      <div class="row" role="search">
        <Search name="who" label="Who" wide />
        <Search name="action" label="Action" />
        <Choice name="outcome" label="Outcome" options={["accepted", "refused"]} />
      </div>
      <section class="card">
        {view.data && !records.length ? (
          <Empty title="No record fits" />
        ) : (
          <ul class="rows">
            {records.map((record) => (
              <li class="line" key={record.seq}>
                <span class="mono small muted">{record.seq}</span>
                <strong>{record.principal}</strong>
                <span>{record.action}</span>
                <span class="grow cut muted mono small">{record.subject}</span>
                <Status status={record.outcome === "accepted" ? "completed" : "failed"} detail={record.outcome} />
                <span class="small muted">
                  <Ago at={record.at} />
                </span>
              </li>
            ))}
          </ul>
        )}
      </section>
    </>
  );
}
