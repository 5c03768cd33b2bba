// One task: why it is where it is, the sequence across protocols, the wire behind each step, and what a person may do.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get, post } from "../api/client";
import type { Agent, AgentList, Lost, Question, Sequence as SequenceModel, SequenceStep, Task as TaskOut, Why } from "../api/types";
import { onTask } from "../live/stream";
import { place, withQuery } from "../router";
import { Sequence } from "../sequence/Sequence";
import { may } from "../session";
import { bytes, duration, humanKind, pretty, shortId } from "../ui/format";
import { AgentLink, Ago, Copy, Dialog, ErrorBox, Json, Protocol, Route, Status, TaskLink, failed, toast } from "../ui/parts";
import { useView } from "../ui/view";
import { QuestionCard } from "./Inbox";

interface Attempt {
  number: number;
  agent: string | null;
  protocol: string | null;
  begun_at: string;
  ended_at: string | null;
  outcome: string | null;
  message: string | null;
}

interface TaskView {
  task: TaskOut;
  why: Why;
  sequence: SequenceModel;
  attempts: Attempt[];
  questions: Question[];
}

interface WireMessage {
  seq: number;
  at: string;
  kind: string;
  agent: string | null;
  received: { protocol: string; raw: string } | null;
  hub: unknown;
  sent: { protocol: string; receiver: string; raw: string; losses: Lost[] }[];
}

const TABS = ["sequence", "output", "wire", "timeline", "details"] as const;

export function Task({ id }: { id: string }) {
  const view = useView<TaskView>(`/tasks/${encodeURIComponent(id)}/view`, {});
  const tab = place.value.query.get("tab") ?? "sequence";
  const step = place.value.query.get("step");
  const handing = useSignal(false);
  useEffect(() => onTask(id, () => view.refresh()), [id]);
  if (view.error && !view.data) return <ErrorBox error={view.error} onRetry={view.refresh} />;
  if (!view.data) return <p class="muted">Reading…</p>;
  const { task, why, sequence, attempts, questions } = view.data;
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
          {task.type}
          <Status status={task.status} testid="task-status" detail={task.waiting} />
        </h1>
        <div class="row">
          {may("operator") && !over ? (
            <>
              {task.waiting === "held" ? (
                <button type="button" class="button" onClick={() => act("resume")}>
                  Resume
                </button>
              ) : (
                <button type="button" class="button" onClick={() => act("pause")}>
                  Pause
                </button>
              )}
              <button type="button" class="button" onClick={() => (handing.value = true)}>
                Hand over
              </button>
              <button type="button" class="button danger" data-testid="task-cancel" onClick={() => act("cancel")}>
                Cancel
              </button>
            </>
          ) : null}
          {may("operator") ? (
            <button
              type="button"
              class={task.status === "failed" ? "button primary" : "button"}
              data-testid="task-retry"
              disabled={task.status === "completed"}
              onClick={() => act("retry")}
            >
              Retry
            </button>
          ) : null}
        </div>
      </div>
      <section class={`card why tone-${task.status === "failed" ? "bad" : task.status === "waiting" ? "wait" : "ok"}`}>
        <div class="body stack-s">
          <p class="row muted small">
            <span class="mono">{task.id}</span>
            <Copy text={task.id} />
            <span>
              {task.requested_by} → <AgentLink id={task.agent ?? task.requested_agent} />
            </span>
            <Route from={task.protocol_in} to={task.protocol_out} />
            <span>
              begun <Ago at={task.created_at} />
              {task.finished_at ? `, took ${duration((Date.parse(task.finished_at) - Date.parse(task.created_at)) / 1000)}` : ""}
            </span>
          </p>
          <p data-testid="task-why" class="why-text">
            {why.summary}
          </p>
          {why.last_error && task.status !== "completed" ? (
            <p class="why-error">
              {why.last_error.message} <span class="muted">({why.last_error.kind})</span>
            </p>
          ) : null}
          {why.next.length ? (
            <p class="row small">
              <span class="muted">next:</span>
              {why.next.map((command) => (
                <span class="row" key={command}>
                  <code>{command}</code>
                  <Copy text={command} />
                </span>
              ))}
            </p>
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
                chosen={false}
                onChoose={() => {}}
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
            <div class="body">
              <p>{one.question}</p>
              <p class="muted">
                {one.status === "answered" ? (
                  <>
                    <strong>{typeof one.answer === "string" ? one.answer : JSON.stringify(one.answer)}</strong>, answered by{" "}
                    {one.answered_by}
                  </>
                ) : (
                  `${one.status} without an answer`
                )}{" "}
                <Ago at={one.answered_at} />
                {one.note ? `: ${one.note}` : null}
              </p>
            </div>
          </section>
        ))}
      <section class="card">
        <div class="tabs card-tabs" role="tablist" aria-label="Views of this task">
          {TABS.map((name) => (
            <button
              type="button"
              class="tab"
              role="tab"
              aria-selected={tab === name}
              key={name}
              onClick={() => withQuery({ tab: name === "sequence" ? null : name, step: null })}
            >
              {name}
            </button>
          ))}
        </div>
        {tab === "sequence" ? (
          <>
            <Sequence
              sequence={sequence}
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
      </section>
      {handing.value ? <HandOver task={task} onClose={() => (handing.value = false)} onDone={view.refresh} /> : null}
    </>
  );
}

function ChosenStep({ sequence, n }: { sequence: SequenceModel; n: string | null }) {
  const step = n === null ? undefined : sequence.steps.find((one) => String(one.n) === n);
  if (!step) return null;
  return (
    <div class="body chosen-step">
      <h3 class="row">
        {humanKind(step.kind)}: {step.source} → {step.target}
        <Protocol name={step.protocol} />
        <span class="muted small">{new Date(step.at).toLocaleTimeString()}</span>
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

function Output({ task }: { task: TaskOut }) {
  const result = (task as { result?: unknown }).result;
  const output = (task as { output?: string | null }).output;
  return (
    <div class="body stack">
      {output ? (
        <pre class="block" tabIndex={0} role="group" aria-label="Output">
          {output}
        </pre>
      ) : (
        <p class="muted">No output {["completed", "failed", "cancelled"].includes(task.status) ? "came." : "yet."}</p>
      )}
      {result !== undefined && result !== null ? (
        <>
          <h3>Result</h3>
          <Json value={result} label="Result" />
        </>
      ) : null}
      {task.files.length ? (
        <>
          <h3>Files</h3>
          <ul class="rows">
            {task.files.map((file) => (
              <li class="line" key={file.id}>
                <a href={`/api/v1/tasks/${task.id}/files/${file.id}`} download>
                  {file.name}
                </a>
                <span class="muted small">
                  {file.mime_type}, {bytes(file.size)}
                </span>
              </li>
            ))}
          </ul>
        </>
      ) : null}
    </div>
  );
}

function Wire({ id, step }: { id: string; step?: SequenceStep }) {
  const wire = useSignal<WireMessage[] | null>(null);
  const error = useSignal<unknown>(null);
  useEffect(() => {
    const query = step ? { from: step.seq, limit: 1 } : {};
    get<{ messages: WireMessage[] }>(`/tasks/${encodeURIComponent(id)}/wire`, query)
      .then((answer) => {
        wire.value = answer.messages;
      })
      .catch((problem: unknown) => {
        error.value = problem;
      });
  }, [id, step?.seq]);
  if (error.value) return <ErrorBox error={error.value} />;
  if (!wire.value) return <p class="body muted">Reading…</p>;
  return (
    <div class="body stack" data-testid="task-wire">
      {wire.value.map((message) => (
        <article class="wire-message" key={message.seq}>
          {step ? null : (
            <h3 class="row">
              <span class="mono">{message.seq}</span> {humanKind(message.kind)}
              <AgentLink id={message.agent} />
              <span class="muted small">{new Date(message.at).toLocaleTimeString()}</span>
            </h3>
          )}
          <div class="wire-columns">
            <div>
              <h3 class="row">
                Received <Protocol name={message.received?.protocol} />
              </h3>
              {message.received ? <Json value={message.received.raw} label="Received" /> : <p class="muted small">The hub's own.</p>}
            </div>
            <div>
              <h3>The hub's form</h3>
              <Json value={message.hub} label="The hub's form" />
            </div>
            <div>
              {message.sent.length ? (
                message.sent.map((out) => (
                  <div key={out.receiver}>
                    <h3 class="row">
                      Sent <Protocol name={out.protocol} /> <span class="muted">to {out.receiver}</span>
                    </h3>
                    {out.losses.map((lost) => (
                      <p class="lost small" key={lost.feature}>
                        <strong>{humanKind(lost.feature)}</strong> {lost.how}: {lost.why}
                      </p>
                    ))}
                    <pre class="block" tabIndex={0} role="group" aria-label="Sent">
                      {pretty(out.raw)}
                    </pre>
                  </div>
                ))
              ) : (
                <>
                  <h3>Sent</h3>
                  <p class="muted small">Nothing left the hub for it.</p>
                </>
              )}
            </div>
          </div>
        </article>
      ))}
    </div>
  );
}

function Timeline({ attempts, sequence }: { attempts: Attempt[]; sequence: SequenceModel }) {
  return (
    <div class="body stack">
      <h3>Attempts</h3>
      <ol class="rows">
        {attempts.map((attempt) => (
          <li class="line" key={attempt.number}>
            <span class="mono">#{attempt.number}</span>
            <AgentLink id={attempt.agent} />
            <Protocol name={attempt.protocol} />
            <Status status={attempt.outcome ?? "running"} />
            <span class="grow cut muted" title={attempt.message ?? ""}>
              {attempt.message}
            </span>
            <span class="muted small">
              {attempt.ended_at
                ? duration((Date.parse(attempt.ended_at) - Date.parse(attempt.begun_at)) / 1000)
                : "goes on"}
            </span>
          </li>
        ))}
      </ol>
      <h3>Events</h3>
      <ol class="rows">
        {sequence.steps.map((step) => (
          <li class="line" key={step.n}>
            <time class="mono small muted" dateTime={step.at}>
              {new Date(step.at).toLocaleTimeString()}
            </time>
            <strong>
              {humanKind(step.kind)}
              {step.count > 1 ? ` ×${step.count}` : ""}
            </strong>
            <span class="muted">
              {step.source} → {step.target}
            </span>
            <span class="grow cut" title={step.text}>
              {step.text}
            </span>
            <TaskLink id={step.task} />
          </li>
        ))}
      </ol>
    </div>
  );
}

function Details({ task }: { task: TaskOut }) {
  const facts: [string, unknown][] = [
    ["Name", task.name],
    ["Description", task.description],
    ["Priority", task.priority],
    ["Kind", task.kind],
    ["Needs", task.required_capabilities.join(", ")],
    ["Deadline", new Date(task.deadline).toLocaleString()],
    ["Parent", task.parent],
    ["Thread", task.thread],
    ["Depends on", task.dependencies.join(", ")],
    ["Contract", task.contract],
    ["Sandbox", task.sandbox],
    ["Trace", task.trace_id],
  ];
  return (
    <div class="body stack">
      <dl class="facts">
        {facts.map(([name, value]) =>
          value ? (
            <>
              <dt>{name}</dt>
              <dd>{name === "Parent" ? <TaskLink id={String(value)} /> : String(value)}</dd>
            </>
          ) : null,
        )}
      </dl>
      <h3>Input</h3>
      <Json value={(task as { input?: unknown }).input ?? {}} label="Input" />
      {Object.keys(task.constraints ?? {}).length ? (
        <>
          <h3>Constraints</h3>
          <Json value={task.constraints} label="Constraints" />
        </>
      ) : null}
    </div>
  );
}

function HandOver({ task, onClose, onDone }: { task: TaskOut; onClose: () => void; onDone: () => void }) {
  const agents = useSignal<Agent[]>([]);
  const chosen = useSignal("");
  useEffect(() => {
    get<AgentList>("/agents", {})
      .then((answer) => {
        agents.value = answer.agents.filter((one) => one.id !== task.agent);
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
