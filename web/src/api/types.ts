// The shapes of the management API, by the names the pages use. All of them are generated from the hub's OpenAPI
// document (`schema.ts`).

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Task = Schemas["TaskOut"];
export type TaskList = Schemas["TaskList"];
export type Why = Schemas["WhyOut"];
export type Question = Schemas["QuestionOut"];
export type QuestionList = Schemas["QuestionList"];
export type DeadLetter = Schemas["DeadLetterOut"];
export type DeadLetterList = Schemas["DeadLetterList"];
export type Contract = Schemas["ContractOut"];
export type ContractList = Schemas["ContractList"];
export type Agent = Schemas["AgentDetails"];
export type AgentList = Schemas["AgentList"];
export type AuditList = Schemas["AuditList"];
export type AuditVerdict = Schemas["dragoman.api.audit.Verdict"];

// --- until the hub's document has them ---

export interface Me {
  name: string;
  role: "viewer" | "operator" | "admin";
}

export interface Lost {
  feature: string;
  how: string;
  why: string;
}

export interface Participant {
  id: string;
  kind: "caller" | "hub" | "agent" | "person";
  protocol: string | null;
}

export interface SequenceStep {
  n: number;
  task: string;
  seq: number;
  at: string;
  until: string;
  count: number;
  kind: string;
  source: string;
  target: string;
  protocol: string | null;
  text: string;
  lost: Lost[];
}

export interface Sequence {
  trace_id: string;
  participants: Participant[];
  steps: SequenceStep[];
  running: boolean;
}

export interface TaskRow {
  id: string;
  type: string;
  name: string | null;
  status: string;
  agent: string | null;
  protocol_in: string;
  protocol_out: string | null;
  progress: number;
  created_at: string;
  updated_at: string;
}

export interface WireRow {
  n: number;
  at: string;
  task_id: string;
  seq: number;
  kind: string;
  agent: string | null;
  protocol: string | null;
  bytes: number;
  text: string;
}

export interface Changes {
  n: number;
  counts: Record<string, number>;
  tasks: TaskRow[];
  more: boolean;
  agents: { id: string; status: string; current_tasks: number }[];
  questions: { open: number; changed: string[] };
  deadletters: number;
  wire: WireRow[];
  skipped: number;
}

export interface TaskEvent {
  n: number;
  task_id: string;
  seq: number;
  kind: string;
  at: string;
  agent: string | null;
  protocol: string | null;
  bytes: number;
  text: string;
}

export interface Series {
  step_seconds: number;
  at: number[];
  values: Record<string, (number | null)[]>;
}
