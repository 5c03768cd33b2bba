import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { get, post } from "../api/client";
import type { BulkResult, DeadLetter, DeadLetterList } from "../api/types";
import { deadLetters } from "../live/stream";
import { place, withQuery } from "../router";
import { may } from "../session";
import { humanKind, number, plural, pretty, readable } from "../ui/format";
import { AgentLink, Ago, Dialog, Empty, ErrorBox, TaskLink, ViewOnly, failed, now, toast } from "../ui/parts";
import { useRows } from "../ui/selection";
import { useView } from "../ui/view";

export function DeadLetters() {
  const known = useRef<number | null>(null);
  const view = useView<DeadLetterList>("/deadletters", { limit: 500 }, (changes) => {
    const before = known.current;
    known.current = changes.deadletters;
    return before !== null && before !== changes.deadletters;
  });
  const editing = useSignal<DeadLetter | null>(null);
  const all = view.data?.deadletters ?? [];
  const reason = place.value.query.get("reason");
  const groups = new Map<string, number>();
  for (const one of all) groups.set(one.error.kind, (groups.get(one.error.kind) ?? 0) + 1);
  const shown = all.filter((one) => !reason || one.error.kind === reason);
  const kinds = [...new Set(shown.map((one) => one.error.kind))];
  const ordered = kinds.flatMap((kind) => shown.filter((one) => one.error.kind === kind).map((one) => one.id));
  const rows = useRows(ordered, (id) => void edit(id), view.reading);
  const ids = ordered.filter((id) => rows.chosen.has(id));

  const bulk = async (action: "redrive" | "discard", list: string[]) => {
    try {
      const answer = await post<BulkResult>("/bulk/deadletters", { action, ids: list });
      const word = action === "redrive" ? "sent again" : "discarded";
      toast(`${plural(answer.done.length, "dead letter")} ${word}${answer.failed.length ? `, ${answer.failed.length} refused` : ""}`);
      rows.choose([]);
      view.refresh();
    } catch (problem) {
      failed(problem);
    }
  };
  const edit = async (id: string) => {
    try {
      editing.value = await get<DeadLetter>(`/deadletters/${encodeURIComponent(id)}`);
    } catch (problem) {
      failed(problem);
    }
  };
  return (
    <>
      <div class="page-head">
        <h1>Dead letters</h1>
        <span class="muted small" role="status">
          {!view.data
            ? ""
            : view.data.next
              ? `the newest ${number(all.length)}${deadLetters.value ? ` of ${number(deadLetters.value)}` : ""}`
              : plural(all.length, "dead letter")}
        </span>
      </div>
      {groups.size > 1 || reason ? (
        <div class="tabs" role="group" aria-label="Reasons">
          <button type="button" class="tab" aria-pressed={!reason} onClick={() => withQuery({ reason: null })}>
            all {all.length}
          </button>
          {[...groups].map(([kind, count]) => (
            <button type="button" class="tab" key={kind} aria-pressed={reason === kind} onClick={() => withQuery({ reason: kind })}>
              {humanKind(kind)} {count}
            </button>
          ))}
        </div>
      ) : null}
      {ids.length ? (
        <div class="row bulk" role="toolbar" aria-label="Selected dead letters">
          <strong>{ids.length} selected</strong>
          <button type="button" class="button" disabled={!may("operator")} onClick={() => bulk("redrive", ids)}>
            Redrive
          </button>
          <button type="button" class="button danger" disabled={!may("operator")} onClick={() => bulk("discard", ids)}>
            Discard
          </button>
        </div>
      ) : null}
      <ViewOnly to="redrive or discard" />
      {view.error ? <ErrorBox error={view.error} onRetry={view.refresh} /> : null}
      <section class="card">
        {view.data && !shown.length ? (
          <Empty title="There is no dead letter">
            <p>What the hub could not deliver or get done after all attempts is kept here until a person decides.</p>
          </Empty>
        ) : (
          kinds.map((kind) => (
            <Group
              key={kind}
              kind={kind}
              letters={shown.filter((one) => one.error.kind === kind)}
              chosen={rows.chosen}
              current={ordered[rows.current]}
              onChoose={(ids, on) => {
                const next = new Set(rows.chosen);
                for (const id of ids) {
                  if (on) next.add(id);
                  else next.delete(id);
                }
                rows.choose([...next]);
              }}
              onEdit={edit}
              onBulk={bulk}
            />
          ))
        )}
      </section>
      {editing.value ? (
        <Edit
          letter={editing.value}
          onClose={() => (editing.value = null)}
          onDone={() => {
            editing.value = null;
            view.refresh();
          }}
        />
      ) : null}
    </>
  );
}

interface GroupProps {
  kind: string;
  letters: DeadLetter[];
  chosen: ReadonlySet<string>;
  /** The row that the keyboard is at. */
  current: string | undefined;
  onChoose: (ids: string[], on: boolean) => void;
  onEdit: (id: string) => void;
  onBulk: (action: "redrive" | "discard", ids: string[]) => void;
}

/** The dead letters of one reason: what went wrong is usually one thing, and is decided at once. */
function Group({ kind, letters, chosen, current, onChoose, onEdit, onBulk }: GroupProps) {
  const ids = letters.map((one) => one.id);
  const all = ids.every((id) => chosen.has(id));
  return (
    <section class="letters" aria-label={humanKind(kind)}>
      <header class="letters-head">
        <input
          type="checkbox"
          aria-label={`Select all of the reason ${humanKind(kind)}`}
          checked={all}
          disabled={!may("operator")}
          onChange={() => onChoose(ids, !all)}
        />
        <h2 class="grow">
          {humanKind(kind)} <span class="muted">{letters.length}</span>
        </h2>
      </header>
      <ul class="rows">
        {letters.map((letter) => (
          <li class={current === letter.id ? "line letter current" : "line letter"} key={letter.id} data-row="" data-testid="deadletter-row" data-id={letter.id}>
            <input
              type="checkbox"
              aria-label={`Select dead letter ${letter.id}`}
              checked={chosen.has(letter.id)}
              disabled={!may("operator")}
              onChange={() => onChoose([letter.id], !chosen.has(letter.id))}
            />
            <div class="letter-text">
              <p>{readable(letter.error.message, now.value)}</p>
              <p class="row tight muted small">
                {letter.task_id ? (
                  <span>
                    task <TaskLink id={letter.task_id} />
                  </span>
                ) : null}
                {letter.receiver ? (
                  <span>
                    for <AgentLink id={letter.receiver} />
                  </span>
                ) : null}
                <span>{plural(letter.attempts, "attempt")}</span>
                <Ago at={letter.at} />
              </p>
            </div>
            <span class="row tight actions">
              <button type="button" class="button" data-open="" data-testid="deadletter-edit" onClick={() => onEdit(letter.id)}>
                Inspect
              </button>
              {may("operator") ? (
                <>
                  <button type="button" class="button" data-testid="deadletter-redrive" onClick={() => onBulk("redrive", [letter.id])}>
                    Redrive
                  </button>
                  <button type="button" class="button danger" data-testid="deadletter-discard" onClick={() => onBulk("discard", [letter.id])}>
                    Discard
                  </button>
                </>
              ) : null}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Edit({ letter, onClose, onDone }: { letter: DeadLetter; onClose: () => void; onDone: () => void }) {
  const body = (letter.body ?? {}) as { input?: unknown };
  const text = useSignal(pretty(body.input ?? body));
  const wrong = useSignal("");
  return (
    <Dialog title={`Dead letter: ${humanKind(letter.error.kind)}`} onClose={onClose}>
      <form
        class="stack"
        onSubmit={async (event) => {
          event.preventDefault();
          let input: unknown;
          try {
            input = JSON.parse(text.value);
          } catch (problem) {
            wrong.value = `This is not JSON: ${(problem as Error).message}`;
            return;
          }
          try {
            await post(`/deadletters/${encodeURIComponent(letter.id)}/redrive`, { input });
            toast("Sent again with the new input");
            onDone();
          } catch (problem) {
            failed(problem);
          }
        }}
      >
        <p>{readable(letter.error.message, now.value)}</p>
        <label class="stack-s">
          Input
          <textarea
            class="field"
            rows={12}
            spellcheck={false}
            value={text.value}
            onInput={(event) => {
              text.value = event.currentTarget.value;
              wrong.value = "";
            }}
          />
        </label>
        {wrong.value ? (
          <p role="alert" class="why-error">
            {wrong.value}
          </p>
        ) : null}
        <button type="submit" class="button primary" disabled={!may("operator")}>
          Redrive with this input
        </button>
      </form>
    </Dialog>
  );
}
