// One task: why it is where it is, the sequence across protocols, the wire behind each step, and what a person may do.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { get, post } from "../api/client";
import type { Agent, AgentList, Sequence as SequenceModel, Task as TaskOut, TaskView } from "../api/types";
import { place, withQuery } from "../router";
import { Sequence } from "../sequence/Sequence";
import { may } from "../session";
import { clock, duration, humanKind, number, readable, shortId } from "../ui/format";
import { AgentLink, Ago, Copy, Dialog, ErrorBox, Payload, Protocol, Status, Tabs, ViewOnly, failed, now, toast, toneOf } from "../ui/parts";
import { useView } from "../ui/view";
import { QuestionCard } from "./Inbox";
import { Details, Output, Timeline, Wire } from "./TaskTabs";

const TABS = ["sequence", "output", "wire", "timeline", "details"] as const;

export function Task({ id }: { id: string }) {
  const seen = useRef<{ ids: Set<string>; running: boolean }>({ ids: new Set([id]), running: true });
  const view = useView<TaskView>(`/tasks/${encodeURIComponent(id)}/view`, {}, (changes) => {
    // While it runs, a task that is new may be one that it led to.
    const { ids, running } = seen.current;
    return (
      (running && changes.more) ||
      changes.tasks.some((task) => ids.has(task.id) || (running && task.created_at === task.updated_at))
    );
  });
  const tab = place.value.query.get("tab") ?? "sequence";
  const step = place.value.query.get("step");
  const handing = useSignal(false);
  if (view.error && !view.data) return <ErrorBox error={view.error} onRetry={view.refresh} />;
  if (!view.data) return <p class="muted">Reading…</p>;
  const { task, why, sequence, attempts, questions } = view.data;
  seen.current = { ids: new Set([id, ...sequence.steps.map((one) => one.task)]), running: sequence.running };
  const over = ["completed", "failed", "cancelled"].includes(task.status);
  const act = async (verb: string, body?: unknown) => {
    try {
      await post(`/tasks/${encodeURIComponent(id)}/${verb}`, body);
      toast(`Task ${shortId(id)}: ${verb} sent`);
      view.refresh();
    } catch (problem) {
      failed(problem);
    }
  };
  return (
    <>
      <div class="page-head">
        <h1 class="row">
          <span class="task-title">{task.type}</span>
          {task.name && task.name !== task.type ? <span class="task-name cut">{task.name}</span> : null}
          <Status status={task.status} testid="task-status" detail={task.waiting} />
        </h1>
        <div class="row">
          {may("operator") && !over ? (
            <>
              {task.waiting === "held" ? (
                <button type="button" class="button" data-testid="task-resume" onClick={() => act("resume")}>
                  Resume
                </button>
              ) : (
                <button type="button" class="button" data-testid="task-pause" onClick={() => act("pause")}>
                  Pause
                </button>
              )}
              <button type="button" class="button" data-testid="task-handover" onClick={() => (handing.value = true)}>
                Hand over
              </button>
              <button type="button" class="button danger" data-testid="task-cancel" onClick={() => act("cancel")}>
                Cancel
              </button>
            </>
          ) : null}
          {may("operator") && task.status !== "completed" ? (
            <button
              type="button"
              class={over ? "button primary" : "button"}
              data-testid="task-retry"
              onClick={() => act("retry")}
            >
              Retry
            </button>
          ) : null}
        </div>
      </div>
      <ViewOnly to="change a task" />
      <section class={`card why tone-${toneOf(task.status)}`}>
        <div class="body stack-s">
          <p data-testid="task-why" class="why-text">
            {readable(why.summary, now.value)}
          </p>
          {why.last_error && task.status !== "completed" && !why.summary.includes(why.last_error.message) ? (
            <p class="why-error">
              {readable(why.last_error.message, now.value)} <span class="muted">({humanKind(why.last_error.kind)})</span>
            </p>
          ) : null}
          <dl class="strip small">
            <div>
              <dt>From</dt>
              <dd>
                {task.requested_by} <Protocol name={task.protocol_in} />
              </dd>
            </div>
            <div>
              <dt>To</dt>
              <dd>
                <AgentLink id={task.agent ?? task.requested_agent} />{" "}
                {task.protocol_out ? <Protocol name={task.protocol_out} /> : null}
              </dd>
            </div>
            <div>
              <dt>Begun</dt>
              <dd>
                <Ago at={task.created_at} />
              </dd>
            </div>
            {task.finished_at ? (
              <div>
                <dt>Took</dt>
                <dd>{duration((Date.parse(task.finished_at) - Date.parse(task.created_at)) / 1000)}</dd>
              </div>
            ) : null}
            {costOf(task.usage).map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ))}
            {task.attempts > 1 ? (
              <div>
                <dt>Attempts</dt>
                <dd>{task.attempts}</dd>
              </div>
            ) : null}
            <div>
              <dt>Id</dt>
              <dd class="row tight">
                <code>{task.id}</code> <Copy text={task.id} label="Copy id" />
              </dd>
            </div>
          </dl>
          {why.next.length ? (
            <div class="next small">
              <span class="muted">Next, in a terminal</span>
              {why.next.map((command) => (
                <span class="row tight" key={command}>
                  <code>{command}</code>
                  <Copy text={command} label="Copy" />
                </span>
              ))}
            </div>
          ) : null}
        </div>
      </section>
      {questions.some((one) => one.status === "open") ? (
        <ul class="stack">
          {questions
            .filter((one) => one.status === "open")
            .map((question) => (
              <QuestionCard
                question={question}
                key={question.id}
                onAnswer={async (answer, note) => {
                  try {
                    await post(`/questions/${encodeURIComponent(question.id)}/answer`, note ? { answer, note } : { answer });
                    toast("Answer sent");
                    view.refresh();
                  } catch (problem) {
                    failed(problem);
                  }
                }}
              />
            ))}
        </ul>
      ) : null}
      {questions
        .filter((one) => one.answered_at)
        .map((one) => (
          <section class="card" key={one.id} data-testid="answered" data-id={one.id}>
            <div class="body stack-s">
              <p>{one.question}</p>
              {one.status === "answered" ? (
                typeof one.answer === "string" ? (
                  <p class="payload-text">
                    <strong>{one.answer}</strong>
                  </p>
                ) : (
                  <Payload value={one.answer} label="Answer" />
                )
              ) : null}
              <p class="muted small">
                {one.status === "answered" ? `answered by ${one.answered_by}` : `${humanKind(one.status)} without an answer`}{" "}
                <Ago at={one.answered_at} />
                {one.note ? `: ${one.note}` : null}
              </p>
            </div>
          </section>
        ))}
      <section class="card">
        <Tabs
          label="Views of this task"
          names={TABS}
          chosen={tab}
          onChoose={(name) => withQuery({ tab: name === "sequence" ? null : name, step: null })}
        />
        <div role="tabpanel" id="panel" aria-label={tab}>
          {tab === "sequence" ? (
            <>
              <Sequence
                sequence={sequence}
                name={`task-${shortId(id).replace("…", "")}`}
                selected={step === null ? null : Number(step)}
                onSelect={(chosen) => withQuery({ step: String(chosen.n) === step ? null : String(chosen.n) }, { replace: true })}
              />
              <ChosenStep sequence={sequence} n={step} />
            </>
          ) : null}
          {tab === "output" ? <Output task={task} /> : null}
          {tab === "wire" ? <Wire id={task.id} /> : null}
          {tab === "timeline" ? <Timeline attempts={attempts} sequence={sequence} /> : null}
          {tab === "details" ? <Details task={task} /> : null}
        </div>
      </section>
      {handing.value ? <HandOver task={task} onClose={() => (handing.value = false)} onDone={view.refresh} /> : null}
    </>
  );
}

/** What an agent said that the work used: cost first, then the rest. */
function costOf(usage: unknown): [string, string][] {
  if (!usage || typeof usage !== "object") return [];
  const { cost_usd: cost, tokens_used: tokens } = usage as Record<string, unknown>;
  const found: [string, string][] = [];
  if (typeof cost === "number" && cost) found.push(["Cost", `$${cost < 1 ? cost.toFixed(4).replace(/0{1,2}$/, "") : cost.toFixed(2)}`]);
  if (typeof tokens === "number" && tokens) found.push(["Tokens", number(tokens)]);
  return found;
}

function ChosenStep({ sequence, n }: { sequence: SequenceModel; n: string | null }) {
  const step = n === null ? undefined : sequence.steps.find((one) => String(one.n) === n);
  if (!step) return null;
  return (
    <div class="body chosen-step">
      <h3 class="row">
        {humanKind(step.kind)}: {step.source} → {step.target}
        <Protocol name={step.protocol} />
        <span class="muted small">{clock(step.at)}</span>
      </h3>
      {step.lost.map((lost) => (
        <p class="lost" key={lost.feature}>
          <strong>{humanKind(lost.feature)}</strong> {lost.how}: {lost.why}
        </p>
      ))}
      <Wire id={step.task} step={step} />
    </div>
  );
}

function HandOver({ task, onClose, onDone }: { task: TaskOut; onClose: () => void; onDone: () => void }) {
  const agents = useSignal<Agent[]>([]);
  const chosen = useSignal("");
  useEffect(() => {
    get<AgentList>("/agents", {})
      .then((answer) => {
        agents.value = answer.agents.filter(
          (one) => one.id !== task.agent && !one.details.playground && (one.work_types === null || one.work_types.includes(task.type)),
        );
      })
      .catch(failed);
  }, []);
  return (
    <Dialog title="Hand this task to another agent" onClose={onClose}>
      <form
        class="row"
        onSubmit={async (event) => {
          event.preventDefault();
          try {
            await post(`/tasks/${encodeURIComponent(task.id)}/handover`, { agent: chosen.value });
            toast(`Handed to ${chosen.value}`);
            onDone();
            onClose();
          } catch (problem) {
            failed(problem);
          }
        }}
      >
        <select
          class="field grow"
          required
          aria-label="Agent"
          value={chosen.value}
          onChange={(event) => (chosen.value = event.currentTarget.value)}
        >
          <option value="">Choose an agent</option>
          {agents.value.map((one) => (
            <option value={one.id} key={one.id}>
              {one.id} ({one.protocol}, {one.status})
            </option>
          ))}
        </select>
        <button type="submit" class="button primary">
          Hand over
        </button>
      </form>
    </Dialog>
  );
}
