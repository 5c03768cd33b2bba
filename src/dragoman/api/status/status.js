
"use strict";
// What the hub says is only ever text here: nodes are made one by one and filled with textContent.
const KEY = "dragoman.token";
const EVERY = 3000;
const byId = (id) => document.getElementById(id);
let timer = 0;

function cell(row, text, name) {
  const td = row.insertCell();
  const none = text === null || text === undefined || text === "";
  td.textContent = none ? "–" : String(text);
  if (name || none) td.className = name || "nothing";
}

const STATES = new Set(["completed", "running", "assigned", "waiting", "failed", "cancelled", "queued", "idle",
  "busy", "offline", "connecting", "open", "half_open", "closed"]);
const state = (text) => (STATES.has(text) ? text : "");
// Who speaks what: that is where a task crosses from one protocol to another.
const speaker = (name, protocol) => (name && protocol ? name + " · " + protocol : name);
const short = (id) => String(id).slice(0, 13);
const clock = (at) => {
  if (!at) return "";
  const then = new Date(at);
  return then.toDateString() === new Date().toDateString() ? then.toLocaleTimeString() : then.toLocaleString();
};
const cut = (text) => (String(text).length > 160 ? String(text).slice(0, 160) + "…" : text);

const drawn = new Map();

// What is as it was stays as it is: whoever is about to press a button, or to copy a line, is not disturbed.
function table(id, heads, rows, fill, none, more) {
  const place = byId(id), said = JSON.stringify([rows, more]);
  if (drawn.get(id) === said) return;
  drawn.set(id, said);
  byId(id + "-count").textContent = rows.length + (more ? "+" : "");
  if (!rows.length) {
    const p = document.createElement("p");
    p.className = "none";
    p.textContent = none;
    place.replaceChildren(p);
    return;
  }
  const sheet = document.createElement("table");
  const head = sheet.createTHead().insertRow();
  for (const name of heads) {
    const th = document.createElement("th");
    th.scope = "col";
    th.textContent = name;
    head.append(th);
  }
  const body = sheet.createTBody();
  for (const row of rows) fill(body.insertRow(), row);
  place.replaceChildren(sheet);
}

async function read(path, body) {
  const answer = await fetch("/api/v1/" + path, {
    headers: { Authorization: "Bearer " + sessionStorage.getItem(KEY) },
    cache: "no-store", credentials: "omit", redirect: "error",
    ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
  });
  if (answer.status === 401) throw new Error("This is not the admin token of this hub.");
  if (!answer.ok) throw new Error("The hub answered with status " + answer.status + ".");
  return answer.json();
}

// One button for each answer there is. What is answered in words is answered by the command line.
function answers(row, question) {
  const td = row.insertCell();
  if (!question.options.length) td.textContent = "dragoman ask answer " + short(question.id) + " …";
  for (const option of question.options) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cut(option);
    button.addEventListener("click", async () => {
      for (const other of td.children) other.disabled = true;
      try {
        await read("questions/" + encodeURIComponent(question.id) + "/answer", { answer: option });
        await look();
      } catch (error) {
        drawn.delete("questions"); // with buttons that can be pressed again
        await look();
        byId("verdict").textContent = "The answer was not taken: " + error.message;
      }
    });
    td.append(button, " ");
  }
}

function draw(agents, tasks, questions, letters) {
  const waiting = questions.questions.length;
  byId("verdict").textContent = waiting
    ? waiting + (waiting === 1 ? " question waits" : " questions wait") + " for a person"
    : agents.agents.filter((a) => a.status !== "offline").length + " of " + agents.agents.length + " agents here";
  table("questions", ["Asked", "Agent", "Task", "Question", "Answer"], questions.questions, (row, q) => {
    cell(row, clock(q.created_at), "time"); cell(row, q.agent); cell(row, short(q.task_id), "id");
    cell(row, cut(q.context ? `${q.question} ${JSON.stringify(q.context)}` : q.question)); answers(row, q);
  }, "Nobody waits for an answer.");
  table("agents", ["Agent", "Protocol", "Kind", "Status", "Tasks", "Breaker", "Last seen"], agents.agents, (row, a) => {
    cell(row, a.id); cell(row, a.protocol); cell(row, a.kind); cell(row, a.status, state(a.status));
    cell(row, a.current_tasks.length + "/" + a.max_concurrent);
    cell(row, a.breaker.state, a.breaker.state === "closed" ? "closed" : "open"); cell(row, clock(a.last_seen), "time");
  }, "No agent yet. Let one in: dragoman agent add ID --protocol chiffon");
  table("tasks", ["Task", "Type", "Status", "From", "To", "Progress", "Updated", "Error"], tasks.tasks, (row, t) => {
    cell(row, short(t.id), "id"); cell(row, t.name || t.type);
    cell(row, t.waiting ? "waiting: " + t.waiting : t.status, state(t.status));
    cell(row, speaker(t.requested_by, t.protocol_in), "speaker");
    cell(row, speaker(t.agent, t.protocol_out), "speaker");
    cell(row, t.progress + " %"); cell(row, clock(t.updated_at), "time");
    cell(row, t.error ? cut(t.error.message) : "");
  }, "No task yet. Give one: dragoman call AGENT WORK", tasks.next);
  table("deadletters", ["At", "Task", "For", "Attempts", "Why"], letters.deadletters, (row, d) => {
    cell(row, clock(d.at), "time"); cell(row, short(d.task_id), "id"); cell(row, d.receiver); cell(row, d.attempts);
    cell(row, cut(d.error.message), "dead");
  }, "Nothing was given up.", letters.next);
}

async function look() {
  clearTimeout(timer);
  if (!sessionStorage.getItem(KEY)) return show(false, "");
  try {
    draw(...await Promise.all([read("agents"), read("tasks?limit=25"), read("questions?status=open"),
      read("deadletters?limit=25")]));
    show(true, "");
  } catch (error) {
    if (error.message.startsWith("This is not")) {
      sessionStorage.removeItem(KEY);
      return show(false, error.message);
    }
    byId("verdict").textContent = "The hub cannot be read: " + error.message;
  }
  timer = setTimeout(look, document.hidden ? EVERY * 5 : EVERY);
}

function show(inside, refusal) {
  byId("door").hidden = inside;
  byId("board").hidden = !inside;
  byId("leave").hidden = !inside;
  byId("refusal").textContent = refusal;
  if (!inside) {
    byId("verdict").textContent = "needs the admin token";
    byId("token").focus();
  }
}

byId("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("token").value.trim());
  byId("token").value = "";
  look();
});
byId("leave").addEventListener("click", () => { sessionStorage.removeItem(KEY); look(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
// `dragoman dev` may print …/#token=…: a fragment never leaves the browser, and is taken off the address at once.
const given = /^#token=([0-9A-Za-z._~-]+)$/.exec(location.hash);
if (given) {
  sessionStorage.setItem(KEY, given[1]);
  history.replaceState(null, "", "/");
}
look();
