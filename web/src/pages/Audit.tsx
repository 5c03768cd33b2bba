import { type ComponentChildren, Fragment } from "preact";
import type { AuditView } from "../api/types";
import { place, withQuery } from "../router";
import { Choice, Search } from "../ui/Filters";
import { number } from "../ui/format";
import { Ago, Copy, Dialog, Empty, ErrorBox, Protocol, Status } from "../ui/parts";
import { useRows } from "../ui/selection";
import { useView } from "../ui/view";
import { VirtualList } from "../ui/VirtualList";

/** Records that the hub answers at most. */
const SHOWN = 200;

export function Audit() {
  const { query } = place.value;
  const filters = { principal: query.get("who"), action: query.get("action"), outcome: query.get("outcome") };
  const view = useView<AuditView>("/audit/view", filters);
  const records = view.data?.records ?? [];
  const verdict = view.data?.verdict;
  const open = records.find((record) => String(record.seq) === query.get("record"));
  const rows = useRows(
    records.map((record) => String(record.seq)),
    (seq) => withQuery({ record: seq }),
    view.reading,
  );
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
        <Search name="who" label="Who, by the whole name" wide />
        <Search name="action" label="Action, e.g. task." />
        <Choice name="outcome" label="Outcome" options={["accepted", "refused"]} />
      </div>
      {view.data && records.length === SHOWN ? (
        <p class="muted small">These are the newest {number(SHOWN)} that fit. The export has all of them.</p>
      ) : null}
      <section class="card">
        {view.data && !records.length ? (
          <Empty title="No record fits">
            <p>Clear the filters. An action is the beginning of a verb: “task.” finds all that was done to tasks.</p>
          </Empty>
        ) : (
          <VirtualList
            rows={records}
            rowHeight={40}
            label="Audit records"
            keyOf={(record) => String(record.seq)}
            head={
              <div class="cells head audit-grid" role="row">
                <span role="columnheader" class="wide count-cell">
                  No.
                </span>
                <span role="columnheader">Who</span>
                <span role="columnheader">Action</span>
                <span role="columnheader" class="wide">
                  On
                </span>
                <span role="columnheader">Outcome</span>
                <span role="columnheader">When</span>
              </div>
            }
            current={rows.current}
            moved={rows.at}
            render={(record, index) => (
              <div class={`cells audit-grid${rows.current === index ? " current" : ""}`} data-row="" data-testid="audit-row">
                <span role="cell" class="mono small muted wide count-cell">
                  {record.seq}
                </span>
                <strong role="cell" class="cut" title={record.principal}>
                  {record.principal}
                </strong>
                <span role="cell" class="cut">
                  <button type="button" class="link" data-open="" onClick={() => withQuery({ record: String(record.seq) })}>
                    {record.action}
                  </button>
                </span>
                <span role="cell" class="cut muted mono small wide" title={record.subject ?? ""}>
                  {isTask(record) ? (
                    <a href={`/tasks/${encodeURIComponent(record.subject ?? "")}`}>{record.subject}</a>
                  ) : (
                    record.subject
                  )}
                </span>
                <span role="cell" class="row tight nowrap" title={record.reason ?? ""}>
                  <Status status={record.outcome} />
                  {record.reason ? <span class="cut muted small wide">{record.reason}</span> : null}
                </span>
                <span role="cell" class="small muted">
                  <Ago at={record.at} />
                </span>
              </div>
            )}
          />
        )}
      </section>
      {open ? <Whole record={open} key={open.seq} onClose={() => withQuery({ record: null })} /> : null}
    </>
  );
}

/** One record with everything that its hash is over. */
function Whole({ record, onClose }: { record: AuditView["records"][number]; onClose: () => void }) {
  const { subject, action } = record;
  const facts: [string, ComponentChildren][] = [
    ["Outcome", <Status status={record.outcome} />],
    ["Who", record.principal],
    ["Action", action],
    ["On", subject && isTask(record) ? <a href={`/tasks/${encodeURIComponent(subject)}`}>{subject}</a> : subject],
    ["Reason", record.reason],
    ["At", new Date(record.at).toLocaleString()],
    ["Protocol", record.protocol ? <Protocol name={record.protocol} /> : null],
    ["Digest of the content", record.digest ? <code>{record.digest}</code> : null],
    ["Hash", <code>{record.hash}</code>],
    ["Hash of the record before", <code>{record.prev}</code>],
  ];
  return (
    <Dialog title={`Record ${number(record.seq)}`} onClose={onClose} wide>
      <div class="stack">
        <dl class="facts">
          {facts.map(([name, value]) =>
            value ? (
              <Fragment key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </Fragment>
            ) : null,
          )}
        </dl>
        <p>
          <Copy text={JSON.stringify(record, null, 2)} label="Copy as JSON" />
        </p>
      </div>
    </Dialog>
  );
}

const isTask = (record: AuditView["records"][number]): boolean => !!record.subject && record.action.startsWith("task.");
