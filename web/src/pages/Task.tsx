// One task: why it is where it is, the sequence across protocols, the wire behind each step, and what a person may do.

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { get, post } from "../api/client";
import type {
  Agent,
  AgentList,
  Attempt,
  Sequence as SequenceModel,
  SequenceStep,
  Task as TaskOut,
  TaskView,
  WireList,
  WireMessage,
} from "../api/types";
import { place, withQuery } from "../router";
import { atEnd } from "../sequence/place";
import { Sequence } from "../sequence/Sequence";
import { may } from "../session";
import { bytes, clock, duration, humanKind, number, pretty, readable, shortId } from "../ui/format";
import { AgentLink, Ago, Copy, Dialog, ErrorBox, Json, Payload, Protocol, Status, Tabs, TaskLink, ViewOnly, failed, now, toast, toneOf } from "../ui/parts";
import { useView } from "../ui/view";
import { QuestionCard } from "./Inbox";

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

function Output({ task }: { task: TaskOut }) {
  const { result } = task;
  // Some protocols carry a result as text only: then that is its output, too, and it is shown once.
  const output = isSame(task.output, result) ? "" : task.output;
  const text = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  // Output that streams in is followed, unless a person has scrolled up in it.
  useLayoutEffect(() => {
    if (text.current && follows.current) text.current.scrollTop = text.current.scrollHeight;
  }, [output]);
  return (
    <div class="body stack">
      {output ? (
        <pre
          class="block"
          ref={text}
          tabIndex={0}
          role="group"
          aria-label="Output"
          onScroll={(event) => {
            const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
            follows.current = atEnd(scrollTop, clientHeight, scrollHeight);
          }}
        >
          {output}
        </pre>
      ) : isSame(task.output, result) ? null : (
        <p class="muted">No output {["completed", "failed", "cancelled"].includes(task.status) ? "came." : "yet."}</p>
      )}
      {result !== undefined && result !== null ? (
        <>
          <h3>Result</h3>
          <Payload value={result} label="Result" />
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

function isSame(output: string | undefined, result: unknown): boolean {
  try {
    return JSON.stringify(JSON.parse(output ?? "")) === JSON.stringify(result);
  } catch {
    return false;
  }
}

function Wire({ id, step }: { id: string; step?: SequenceStep }) {
  const wire = useSignal<WireMessage[] | null>(null);
  const error = useSignal<unknown>(null);
  useEffect(() => {
    const query = step ? { from: step.seq, limit: 1 } : {};
    get<WireList>(`/tasks/${encodeURIComponent(id)}/wire`, query)
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
              <span class="muted small">{clock(message.at)}</span>
            </h3>
          )}
          <div class="wire-columns">
            <div>
              <h3 class="row">
                Received <Protocol name={message.received?.protocol} />
              </h3>
              {message.received ? (
                <Json value={message.received.raw} label="Received" />
              ) : (
                <p class="muted small">The hub's own.</p>
              )}
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
              {attempt.ended_at ? duration((Date.parse(attempt.ended_at) - Date.parse(attempt.begun_at)) / 1000) : "goes on"}
            </span>
          </li>
        ))}
      </ol>
      <h3>Events</h3>
      <ol class="rows">
        {sequence.steps.map((step) => (
          <li class="line" key={step.n}>
            <time class="mono small muted" dateTime={step.at}>
              {clock(step.at)}
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
      <Payload value={task.input ?? {}} label="Input" />
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
