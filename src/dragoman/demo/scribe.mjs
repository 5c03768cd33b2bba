// A scribe, in JavaScript: writes reports, and has somebody else look things up for them.
//
// It speaks forge by itself: one JSON object a line on stdin and stdout, nothing but Node's own modules. The hub starts
// it as a child process, so it needs no address and no token. What it prints that is no JSON, and everything on stderr,
// is a line in its log.

import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';

const waiting = new Map(); // request id → how to go on with its response
const endings = new Map(); // task id of what we asked others to do → its end, whichever of us comes to it first

const say = (type, payload, id = randomUUID()) => {
  process.stdout.write(JSON.stringify({ type, id, timestamp: new Date().toISOString(), payload }) + '\n');
  return id;
};

const ask = (type, payload) =>
  new Promise((done, failed) => waiting.set(say(type, payload), { done, failed }));

const ending = (taskId) => {
  if (!endings.has(taskId)) {
    const end = {};
    end.over = new Promise((done, failed) => Object.assign(end, { done, failed }));
    end.over.catch(() => {}); // whoever waits for it hears of it
    endings.set(taskId, end);
  }
  return endings.get(taskId);
};

async function writeReport(task) {
  const topic = task.payload.topic ?? 'nothing in particular';
  if (topic.startsWith('release') && task.attempt === 1) {
    console.error('the printer is on fire'); // the hub starts us again, and gives us the task again
    process.exit(1);
  }
  say('event:progress', { taskId: task.id, progress: 0.1, message: `looking up ${topic}` });
  const submitted = await ask('request:submit-task', {
    type: 'research',
    name: `Look up ${topic}`,
    kind: 'research',
    payload: { content: topic },
    parentId: task.id,
    priority: task.priority,
  });
  const found = await ending(submitted.task.id).over;
  endings.delete(submitted.task.id);
  say('event:progress', { taskId: task.id, progress: 0.8, message: 'writing it up', output: `# ${topic}\n\n${found}\n` });
  return { topic, words: found.split(/\s+/).length };
}

const work = { write_report: writeReport };

async function take(task) {
  const handler = work[task.type];
  try {
    if (!handler) throw new Error(`there is nobody here for ${task.type}; there is ${Object.keys(work)}`);
    const result = await handler(task);
    await ask('request:update-task', { taskId: task.id, status: 'completed', result });
  } catch (error) {
    console.error(`task ${task.id}:`, error.message);
    await ask('request:update-task', { taskId: task.id, status: 'failed', error: error.message }).catch(() => {});
  }
}

const hear = {
  'response:success': (message) => settle(message, ({ done }) => done(message.payload)),
  'response:error': (message) => settle(message, ({ failed }) => failed(new Error(message.error.message))),
  'notify:task-assigned': ({ payload }) => take(payload.task),
  'notify:task-updated': ({ payload }) => {
    if (!payload.final) return;
    const { done, failed } = ending(payload.taskId);
    if (payload.status === 'completed') done(String(payload.output ?? JSON.stringify(payload.result)));
    else failed(new Error(`nobody could look it up: ${payload.error?.message ?? payload.status}`));
  },
  'notify:shutdown': () => process.exit(0),
};

function settle(message, how) {
  const asked = waiting.get(message.correlationId);
  waiting.delete(message.correlationId);
  if (asked) how(asked);
}

createInterface({ input: process.stdin })
  .on('line', (line) => {
    const message = JSON.parse(line);
    hear[message.type]?.(message);
  })
  .on('close', () => process.exit(0));

console.error('the scribe is at its desk');
