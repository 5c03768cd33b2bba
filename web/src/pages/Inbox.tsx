import { useSignal } from "@preact/signals";
import { post } from "../api/client";
import type { Question, QuestionList } from "../api/types";
import { may } from "../session";
import { plural } from "../ui/format";
import { AgentLink, Ago, Empty, ErrorBox, Json, TaskLink, failed, now, toast } from "../ui/parts";
import { useView } from "../ui/view";

const KINDS: Record<string, string> = {
  answer: "Question",
  help: "Help request",
  takeover: "Handoff",
  approval: "Approval",
};

export function Inbox() {
  const view = useView<QuestionList>("/questions", { status: "open", limit: 200 }, (changes) => changes.questions.changed.length > 0);
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  const questions = [...(view.data?.questions ?? [])].sort((one, other) => one.created_at.localeCompare(other.created_at));
  const together = questions.filter((one) => chosen.value.has(one.id));
  const shared = together.length ? optionsOf(together) : [];

  const answer = async (list: Question[], given: unknown, note: string) => {
    const results = await Promise.allSettled(
      list.map((one) => post(`/questions/${encodeURIComponent(one.id)}/answer`, note ? { answer: given, note } : { answer: given })),
    );
    const refused = results.find((one) => one.status === "rejected");
    if (refused) failed((refused as PromiseRejectedResult).reason);
    const done = results.filter((one) => one.status === "fulfilled").length;
    if (done) toast(`${plural(done, "answer")} sent`);
    chosen.value = new Set();
    view.refresh();
  };

  return (
    <>
      <div class="page-head">
        <h1>Inbox</h1>
        <span class="muted small" role="status">
          {view.data ? (questions.length ? `${plural(questions.length, "agent waits", "agents wait")}, oldest first` : "") : ""}
        </span>
      </div>
      {view.error ? <ErrorBox error={view.error} onRetry={view.refresh} /> : null}
      {together.length > 1 ? (
        <div class="row bulk" role="toolbar" aria-label="Answer together">
          <strong>{together.length} selected</strong>
          {shared.map((option) => (
            <button type="button" class="button" key={String(option)} onClick={() => answer(together, option, "")}>
              Answer all: {String(option)}
            </button>
          ))}
          {shared.length ? null : <span class="muted">They have no option in common.</span>}
        </div>
      ) : null}
      {view.data && !questions.length ? (
        <section class="card">
          <Empty title="No agent waits for you">
            <p>Questions, help requests, handoffs and approvals appear here as agents ask.</p>
          </Empty>
        </section>
      ) : null}
      <ul class="stack">
        {questions.map((question) => (
          <QuestionCard
            question={question}
            key={question.id}
            chosen={chosen.value.has(question.id)}
            onChoose={() => {
              const next = new Set(chosen.value);
              if (!next.delete(question.id)) next.add(question.id);
              chosen.value = next;
            }}
            onAnswer={(given, note) => answer([question], given, note)}
          />
        ))}
      </ul>
    </>
  );
}

const optionsOf = (questions: Question[]): unknown[] =>
  (questions[0]?.options ?? []).filter((option) =>
    questions.every((one) => one.options.some((other) => JSON.stringify(other) === JSON.stringify(option))),
  );

interface CardProps {
  question: Question;
  chosen: boolean;
  onChoose: () => void;
  onAnswer: (answer: unknown, note: string) => void;
}

export function QuestionCard({ question, chosen, onChoose, onAnswer }: CardProps) {
  const text = useSignal("");
  const note = useSignal("");
  const left = question.deadline ? Date.parse(question.deadline) - now.value : null;
  const id = `question-${question.id}`;
  return (
    <li class="card question" data-testid="question" data-id={question.id}>
      <header>
        <input type="checkbox" aria-label="Select this question" checked={chosen} onChange={onChoose} />
        <strong>{KINDS[question.about] ?? question.about}</strong>
        <span class="muted">
          from <AgentLink id={question.agent} />
          {question.task_id ? (
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
            {question.has_default ? `, then “${String(question.default)}”` : ""}
          </span>
        ) : null}
      </header>
      <div class="body stack">
        <p class="question-text" id={id}>
          {question.question}
        </p>
        {question.context ? (
          <details>
            <summary>What the agent says about it</summary>
            <Json value={question.context} />
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
                {typeof option === "string" ? option : JSON.stringify(option)}
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
        {may("operator") ? null : <p class="muted small">You may look, not answer: ask an admin for the role operator.</p>}
      </div>
    </li>
  );
}
