// Send work to an agent as any protocol, and see the bytes that go and come.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { get, post } from "../api/client";
import type { Agent, AgentList, Exchange, Task, TaskList } from "../api/types";
import { onChanges } from "../live/stream";
import { place, withQuery } from "../router";
import { save } from "../sequence/standalone";
import { may } from "../session";
import { exampleOf, fieldsOf, type Field } from "../ui/schema";
import { Copy, Empty, ErrorBox, Payload, Status, TaskLink, ViewOnly, failed, toast } from "../ui/parts";
import { pretty } from "../ui/format";
import { reader } from "../ui/reader";
import { useView } from "../ui/view";

const PROTOCOLS = ["chiffon", "agentmsg", "forge", "a2acp", "coven", "api"];

export function Playground() {
  const agents = useView<AgentList>("/agents", {});
  const { query } = place.value;
  const list = (agents.data?.agents ?? []).filter(
    (agent) => !agent.details.playground && ((agent.work_types ?? []).length || agent.id === query.get("agent")),
  );
  const agent = list.find((one) => one.id === query.get("agent")) ?? list[0];
  const works = agent?.work_types ?? [];
  const work = query.get("work") ?? works[0] ?? "";
  const protocol = query.get("as") ?? "chiffon";
  const schema = schemaOf(agent, work);
  const input = useSignal("{}");
  const wrong = useSignal("");
  const error = useSignal<unknown>(null);
  const exchange = useSignal<Exchange | null>(null);
  const busy = useSignal(false);
  /** What a person wrote stays when the list of agents arrives late, until they choose other work. */
  const written = useRef(false);
  useEffect(() => {
    if (!written.current) input.value = JSON.stringify(exampleOf(schema), null, 2);
  }, [agent?.id, work]);
  const choose = (changes: Record<string, string | null>) => {
    written.current = false;
    withQuery(changes, { replace: true });
  };
  const id = exchange.value?.task_id;
  useEffect(() => {
    if (!id) return;
    const read = () =>
      get<Exchange>(`/playground/${encodeURIComponent(id)}`)
        .then((answer) => {
          exchange.value = answer;
        })
        .catch(() => {}); // the hub is away, or forgot it; what is on the page stays
    const own = reader(read, 300);
    own.now();
    const stop = onChanges((changes) => {
      if (changes.tasks.some((task) => task.id === id)) own.soon();
    });
    return () => {
      own.stop();
      stop();
    };
  }, [id]);
  /** Agents of most protocols declare no schema: what they were given last shows what they take. */
  const lastInput = async () => {
    try {
      const { tasks } = await get<TaskList>("/tasks", { type: work, agent: agent?.id, limit: 1 });
      const last = tasks[0] ? await get<Task>(`/tasks/${encodeURIComponent(tasks[0].id)}`) : null;
      if (last?.input === undefined || last.input === null) toast(`${agent?.id} had no task of the type ${work} yet`, "bad");
      else input.value = JSON.stringify(last.input, null, 2);
    } catch (problem) {
      failed(problem);
    }
  };
  const send = async () => {
    let value: unknown;
    try {
      value = JSON.parse(input.value || "{}");
    } catch (problem) {
      wrong.value = `The input is not JSON: ${(problem as Error).message}`;
      return;
    }
    busy.value = true;
    error.value = null;
    try {
      exchange.value = await post<Exchange>("/playground", { protocol, agent: agent?.id, work, input: value });
    } catch (problem) {
      error.value = problem;
    } finally {
      busy.value = false;
    }
  };
  return (
    <>
      <div class="page-head">
        <h1>Playground</h1>
      </div>
      <ViewOnly to="send work" />
      {agents.error ? <ErrorBox error={agents.error} onRetry={agents.refresh} /> : null}
      <div class="two-columns">
        <section class="card">
          <form
            class="body form"
            onSubmit={(event) => {
              event.preventDefault();
              void send();
            }}
          >
            <label>
              Send as
              <select
                class="field"
                data-testid="playground-protocol"
                value={protocol}
                onChange={(event) => withQuery({ as: event.currentTarget.value }, { replace: true })}
              >
                {PROTOCOLS.map((name) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            </label>
            <label>
              To
              <select
                class="field"
                data-testid="playground-agent"
                value={agent?.id ?? ""}
                onChange={(event) => choose({ agent: event.currentTarget.value, work: null })}
              >
                {list.map((one) => (
                  <option value={one.id} key={one.id}>
                    {one.id} ({one.protocol}, {one.status})
                  </option>
                ))}
              </select>
            </label>
            <label>
              Work
              <input
                class="field"
                list="playground-works"
                data-testid="playground-work"
                value={work}
                onInput={(event) => choose({ work: event.currentTarget.value })}
              />
              <datalist id="playground-works">
                {works.map((name) => (
                  <option value={name} key={name} />
                ))}
              </datalist>
            </label>
            <SchemaForm
              fields={fieldsOf(schema)}
              input={input.value}
              onChange={(text) => {
                input.value = text;
                written.current = true;
              }}
            />
            <div class="stack-s">
              <div class="row tight">
                <label class="grow" for="playground-input">
                  Input
                </label>
                <button type="button" class="button quiet" disabled={!agent || !work} onClick={() => void lastInput()}>
                  As in the last such task
                </button>
              </div>
              <textarea
                id="playground-input"
                class="field"
                rows={8}
                spellcheck={false}
                data-testid="playground-input"
                value={input.value}
                onInput={(event) => {
                  input.value = event.currentTarget.value;
                  written.current = true;
                  wrong.value = "";
                }}
              />
            </div>
            {wrong.value ? (
              <p role="alert" class="why-error">
                {wrong.value}
              </p>
            ) : null}
            <button
              type="submit"
              class="button primary"
              data-testid="playground-send"
              disabled={busy.value || !agent || !may("operator")}
            >
              Send
            </button>
          </form>
        </section>
        <section class="card" data-testid="playground-reply">
          {error.value ? <ErrorBox error={error.value} /> : null}
          {exchange.value ? (
            <div class="body stack">
              <p class="row">
                Task <TaskLink id={exchange.value.task_id} />
                <Status status={exchange.value.status} />
              </p>
              {exchange.value.reply !== null && exchange.value.reply !== undefined ? (
                <>
                  <h3>Reply</h3>
                  <Payload value={exchange.value.reply} label="Reply" />
                </>
              ) : null}
              <Frames title="Sent" frames={exchange.value.sent} />
              <Frames title="Received" frames={exchange.value.received} />
              <h3>The same from elsewhere</h3>
              {Object.entries(exchange.value.commands).map(([name, text]) => (
                <div key={name} data-testid={`playground-as-${name}`}>
                  <p class="row tight small">
                    <strong class="grow">{ELSEWHERE[name]?.[0] ?? name}</strong>
                    <Copy text={text} />
                    <button
                      type="button"
                      class="button quiet"
                      onClick={() => save(`${work || "work"}${ELSEWHERE[name]?.[1] ?? ".txt"}`, "text/plain", `${text}\n`)}
                    >
                      Save
                    </button>
                  </p>
                  <pre class="block" tabIndex={0} role="group" aria-label={name}>
                    {text}
                  </pre>
                </div>
              ))}
            </div>
          ) : (
            <Empty title="Nothing was sent yet">
              <p>
                The bytes that go and come appear here, word for word, and the same request as a command, for curl and in
                Python.
              </p>
            </Empty>
          )}
        </section>
      </div>
    </>
  );
}

/** What a command is called, and what the file of it ends with. */
const ELSEWHERE: Record<string, [string, string]> = { cli: ["dragoman", ".sh"], curl: ["curl", ".curl.sh"], python: ["Python", ".py"] };

function Frames({ title, frames }: { title: string; frames: { at: string; text: string }[] }) {
  return (
    <>
      <h3>
        {title} ({frames.length})
      </h3>
      {frames.map((frame) => (
        <pre class="block" tabIndex={0} role="group" aria-label={title} key={frame.at + frame.text.length}>
          {pretty(frame.text)}
        </pre>
      ))}
    </>
  );
}

function schemaOf(agent: Agent | undefined, work: string): unknown {
  return agent?.offers?.find((offer) => offer.intent === work)?.input_schema ?? null;
}

function SchemaForm({ fields, input, onChange }: { fields: Field[]; input: string; onChange: (text: string) => void }) {
  if (!fields.length) return null;
  let values: Record<string, unknown> = {};
  try {
    const parsed: unknown = JSON.parse(input);
    if (parsed && typeof parsed === "object" && !Array.isArray(parsed)) values = parsed as Record<string, unknown>;
  } catch {
    // The text below is being written; the fields wait for it.
  }
  const change = (name: string, value: unknown) => {
    const next = { ...values };
    if (value === undefined) delete next[name];
    else next[name] = value;
    onChange(JSON.stringify(next, null, 2));
  };
  return (
    <fieldset class="form">
      <legend class="visually-hidden">Fields of the input</legend>
      {fields.map((field) => (
        <label key={field.name}>
          <span>
            {field.name}
            {field.required ? <span aria-label="required"> *</span> : null}{" "}
            <span class="muted small">{field.description ?? field.type}</span>
          </span>
          {field.options ? (
            <select class="field" value={String(values[field.name] ?? "")} onChange={(event) => change(field.name, event.currentTarget.value || undefined)}>
              <option value="" />
              {field.options.map((option) => (
                <option key={option}>{option}</option>
              ))}
            </select>
          ) : field.type === "boolean" ? (
            <input type="checkbox" checked={values[field.name] === true} onChange={(event) => change(field.name, event.currentTarget.checked)} />
          ) : field.type === "number" || field.type === "integer" ? (
            <input
              class="field"
              type="number"
              step={field.type === "integer" ? 1 : "any"}
              value={typeof values[field.name] === "number" ? (values[field.name] as number) : ""}
              onInput={(event) => change(field.name, event.currentTarget.value === "" ? undefined : Number(event.currentTarget.value))}
            />
          ) : field.type === "string" ? (
            <input
              class="field"
              value={typeof values[field.name] === "string" ? (values[field.name] as string) : ""}
              onInput={(event) => change(field.name, event.currentTarget.value === "" && !field.required ? undefined : event.currentTarget.value)}
            />
          ) : (
            <span class="muted small">in the JSON below</span>
          )}
        </label>
      ))}
    </fieldset>
  );
}
