import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { post } from "../api/client";
import type { Question, QuestionList } from "../api/types";
import { openQuestions } from "../live/stream";
import { go } from "../router";
import { may } from "../session";
import { inWords, number, plural } from "../ui/format";
import { AgentLink, Ago, Empty, ErrorBox, Payload, Route, Status, TaskLink, ViewOnly, failed, now, toast } from "../ui/parts";
import { useRows } from "../ui/selection";
import { useView } from "../ui/view";

const KINDS: Record<string, string> = {
  answer: "Question",
  help: "Help request",
  takeover: "Handoff",
  approval: "Approval",
};

export function Inbox() {
  const view = useView<QuestionList>("/questions", { status: "open", limit: 200 }, (changes) => changes.questions.changed.length > 0);
  const questions = [...(view.data?.questions ?? [])].sort((one, other) => one.created_at.localeCompare(other.created_at));
  const ids = questions.map((one) => one.id);
  const open = (id: string) => {
    const task = questions.find((one) => one.id === id)?.task_id;
    if (task) go(`/tasks/${encodeURIComponent(task)}`);
  };
  const rows = useRows(ids, open, view.reading);
  const together = questions.filter((one) => rows.chosen.has(one.id));
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    list.current?.querySelector(".question.current")?.scrollIntoView({ block: "nearest" });
  }, [rows.at]);

  const answer = async (asked: Question[], given: unknown, note: string) => {
    const results = await Promise.allSettled(
      asked.map((one) => post(`/questions/${encodeURIComponent(one.id)}/answer`, note ? { answer: given, note } : { answer: given })),
    );
    const refused = results.find((one) => one.status === "rejected");
    if (refused) failed((refused as PromiseRejectedResult).reason);
    const done = results.filter((one) => one.status === "fulfilled").length;
    if (done) toast(`${plural(done, "answer")} sent`);
    rows.choose([]);
    view.refresh();
  };

  return (
    <>
      <div class="page-head">
        <h1>Inbox</h1>
        <span class="muted small" role="status">
          {view.data ? waiting(questions.length, view.data.next ? openQuestions.value : null) : ""}
        </span>
        {questions.length > 1 && may("operator") ? (
          <button
            type="button"
            class="button quiet"
            onClick={() => rows.choose(together.length === questions.length ? [] : ids)}
          >
            {together.length === questions.length ? "Select none" : "Select all"}
          </button>
        ) : null}
      </div>
      <ViewOnly to="answer" />
      {view.error ? <ErrorBox error={view.error} onRetry={view.refresh} /> : null}
      {together.length > 1 ? <Together questions={together} onAnswer={(given, note) => answer(together, given, note)} /> : null}
      {view.data && !questions.length ? (
        <section class="card">
          <Empty title="No agent waits for you">
            <p>Questions, help requests, handoffs and approvals appear here as agents ask.</p>
          </Empty>
        </section>
      ) : null}
      <ul class="stack" ref={list}>
        {questions.map((question, index) => (
          <QuestionCard
            question={question}
            key={question.id}
            task={question.task_id ? view.data?.tasks[question.task_id] : undefined}
            current={rows.current === index}
            chosen={rows.chosen.has(question.id)}
            onChoose={() => rows.toggle(question.id)}
            onAnswer={(given, note) => answer([question], given, note)}
          />
        ))}
      </ul>
    </>
  );
}

/** `all`: how many questions are open, where not all of them are shown. */
function waiting(shown: number, all: number | null): string {
  if (all !== null && all > shown) return `the oldest ${number(shown)} of ${number(all)}`;
  return shown ? `${plural(shown, "agent waits", "agents wait")}, oldest first` : "";
}

/** One answer to several questions: an option that they have in common, or a text where none has options. */
function Together({ questions, onAnswer }: { questions: Question[]; onAnswer: (answer: unknown, note: string) => void }) {
  const text = useSignal("");
  const note = useSignal("");
  const shared = optionsOf(questions);
  const free = questions.every((one) => !one.options.length);
  return (
    <form
      class="row bulk"
      aria-label="Answer together"
      data-testid="answer-together"
      onSubmit={(event) => {
        event.preventDefault();
        if (free && text.value.trim()) onAnswer(text.value, note.value);
      }}
    >
      <strong>{questions.length} selected</strong>
      {shared.map((option) => (
        <button type="button" class="button" key={String(option)} onClick={() => onAnswer(option, note.value)}>
          Answer all: {inWords(option)}
        </button>
      ))}
      {free ? (
        <>
          <input
            class="field grow"
            aria-label="One answer to all of them"
            placeholder="One answer to all of them"
            value={text.value}
            onInput={(event) => (text.value = event.currentTarget.value)}
          />
          <button type="submit" class="button" disabled={!text.value.trim()}>
            Answer all
          </button>
        </>
      ) : null}
      {shared.length || free ? (
        <input
          class="field"
          aria-label="Note, kept with each answer"
          placeholder="Note (optional)"
          maxLength={2000}
          value={note.value}
          onInput={(event) => (note.value = event.currentTarget.value)}
        />
      ) : (
        <span class="muted">They have no option in common. Answer them one by one.</span>
      )}
    </form>
  );
}

const optionsOf = (questions: Question[]): unknown[] =>
  (questions[0]?.options ?? []).filter((option) =>
    questions.every((one) => one.options.some((other) => JSON.stringify(other) === JSON.stringify(option))),
  );

interface CardProps {
  question: Question;
  /** The task around it; the task's own page needs none. */
  task?: QuestionList["tasks"][string] | undefined;
  current?: boolean;
  chosen?: boolean;
  /** Given where several may be answered together. */
  onChoose?: () => void;
  onAnswer: (answer: unknown, note: string) => void;
}

export function QuestionCard({ question, task, current, chosen, onChoose, onAnswer }: CardProps) {
  const text = useSignal("");
  const note = useSignal("");
  const left = question.deadline ? Date.parse(question.deadline) - now.value : null;
  const id = `question-${question.id}`;
  return (
    <li class={current ? "card question current" : "card question"} data-testid="question" data-id={question.id}>
      <header>
        {onChoose && may("operator") ? (
          <input type="checkbox" aria-label="Select this question" checked={chosen} onChange={onChoose} />
        ) : null}
        <strong>{KINDS[question.about] ?? question.about}</strong>
        <span class="muted">
          from <AgentLink id={question.agent} />
          {question.task_id && !task ? (
            <>
              {" "}
              about task <TaskLink id={question.task_id} />
            </>
          ) : null}
        </span>
        <span class="grow" />
        <span class="muted small">
          asked <Ago at={question.created_at} />
        </span>
        {left !== null ? (
          <span class={left < 300_000 ? "small deadline soon" : "small deadline"}>
            {left > 0 ? `${Math.max(1, Math.round(left / 60_000))} min left` : "time is up"}
            {question.has_default ? `, then “${inWords(question.default)}”` : ""}
          </span>
        ) : null}
      </header>
      <div class="body stack">
        <p class="question-text" id={id}>
          {question.question}
        </p>
        {task ? (
          <p class="row tight asked-about small">
            <a class="task-type" href={`/tasks/${encodeURIComponent(task.id)}`}>
              {task.type}
            </a>
            {task.name ? <span class="cut muted">{task.name}</span> : null}
            <Status status={task.status} detail={task.progress ? `${task.progress} %` : null} />
            <Route from={task.protocol_in} to={task.protocol_out} />
            <span class="muted">
              asked for by {task.requested_by} <Ago at={task.created_at} />
            </span>
            <TaskLink id={task.id} />
          </p>
        ) : null}
        {question.asked_before.length ? (
          <p class="muted small">
            {question.asked_before.join(", ")} could not help: {question.escalations.at(-1)?.content ?? "no reason given"}
          </p>
        ) : null}
        {question.context ? (
          <details>
            <summary>What the agent says about it</summary>
            <Payload value={question.context} label="What the agent says about it" />
          </details>
        ) : null}
        {question.options.length ? (
          <div class="row" role="group" aria-labelledby={id}>
            {question.options.map((option, index) => (
              <button
                type="button"
                class={index ? "button" : "button primary"}
                key={String(option)}
                data-testid="answer-option"
                disabled={!may("operator")}
                onClick={() => onAnswer(option, note.value)}
              >
                {inWords(option)}
              </button>
            ))}
          </div>
        ) : null}
        <form
          class="row"
          onSubmit={(event) => {
            event.preventDefault();
            if (text.value.trim()) onAnswer(text.value, note.value);
          }}
        >
          {question.options.length ? null : (
            <input
              class="field grow"
              data-testid="answer-text"
              aria-label="Your answer"
              placeholder="Your answer"
              value={text.value}
              disabled={!may("operator")}
              onInput={(event) => (text.value = event.currentTarget.value)}
            />
          )}
          <input
            class="field"
            aria-label="Note, kept with the answer"
            placeholder="Note (optional)"
            maxLength={2000}
            value={note.value}
            disabled={!may("operator")}
            onInput={(event) => (note.value = event.currentTarget.value)}
          />
          {question.options.length ? null : (
            <button type="submit" class="button" data-testid="answer-send" disabled={!may("operator") || !text.value.trim()}>
              Send
            </button>
          )}
        </form>
      </div>
    </li>
  );
}
