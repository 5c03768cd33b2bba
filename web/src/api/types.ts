// The shapes of the management API, by the names the pages use. All of them are generated from the hub's routes
// (`schema.ts`, by `npm run types`).

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Agent = Schemas["AgentDetails"];
export type AgentList = Schemas["AgentList"];
export type AgentView = Schemas["AgentView"];
export type Attempt = Schemas["AttemptOut"];
export type AuditView = Schemas["AuditView"];
export type BulkResult = Schemas["BulkOut"];
export type Changes = Schemas["ChangesOut"];
export type Contract = Schemas["ContractOut"];
export type ContractList = Schemas["ContractList"];
export type Credential = Schemas["Credential"];
export type DeadLetter = Schemas["DeadLetterOut"];
export type DeadLetterList = Schemas["DeadLetterList"];
export type Exchange = Schemas["ExchangeOut"];
export type Lost = Schemas["Lost"];
export type Me = Schemas["Me"];
export type Overview = Schemas["OverviewOut"];
export type Participant = Schemas["Participant"];
export type Question = Schemas["QuestionOut"];
export type QuestionList = Schemas["QuestionList"];
export type Sequence = Schemas["Sequence"];
export type SequenceStep = Schemas["SequenceStep"];
export type StreamEvent = Schemas["StreamEvent"];
export type Task = Schemas["TaskOut"];
export type TaskList = Schemas["TaskList"];
export type TaskRow = Schemas["TaskRow"];
export type TaskView = Schemas["TaskView"];
export type WireMessage = Schemas["WireMessage"];
export type WireList = Schemas["WireOut"];
