// The tabs of a task's page beside its sequence: output, wire, timeline and details.

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { get } from "../api/client";
import type { Attempt, Sequence as SequenceModel, SequenceStep, Task as TaskOut, WireList, WireMessage } from "../api/types";
import { atEnd } from "../sequence/place";
import { bytes, clock, duration, humanKind, pretty } from "../ui/format";
import { AgentLink, ErrorBox, Json, Payload, Protocol, Status, TaskLink } from "../ui/parts";

export function Output({ task }: { task: TaskOut }) {
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

export function Wire({ id, step }: { id: string; step?: SequenceStep }) {
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

export function Timeline({ attempts, sequence }: { attempts: Attempt[]; sequence: SequenceModel }) {
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

export function Details({ task }: { task: TaskOut }) {
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
