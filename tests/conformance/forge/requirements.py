"""Every clause of the forge document and every decision about it, with the place where it can be shown.

`clause` is the heading of the document, or the decision's own number. The sentences are ours. What holds for all
protocols has its own ids here (`forge-all-…`): another protocol's test shows nothing about this one.
"""

from __future__ import annotations

from tests.conformance.manifest import Requirement as R

REQUIREMENTS = [
    # --- Design Principles ---
    R("FG-PRI-1", "Design Principles", "A message is a JSON object."),
    R("FG-PRI-2", "Design Principles", "Each type of message has a schema, and what does not fit is refused by name."),
    R("FG-PRI-3", "Design Principles", "An event is never answered, not even a broken one."),
    R("FG-PRI-4", "Design Principles", "Output that is not JSON is a log line."),
    R("FG-PRI-5", "Design Principles", "Errors have a code, a message and details."),
    # --- Message Format ---
    R("FG-MSG-1", "Base Message Structure", "A message without type, id or timestamp is refused, and the field named."),
    R("FG-MSG-2", "Base Message Structure", "timestamp is an ISO 8601 time."),
    R("FG-MSG-3", "Base Message Structure", "agentId may be left out; the orchestrator sets it."),
    R("FG-MSG-4", "Message Types", "The document's fourteen types are known."),
    R("FG-MSG-5", "Message Types", "Requests and events come from agents, responses and notifications go to them."),
    # --- Request/Response Pattern ---
    R("FG-RSP-1", "Agent Request", "The document's request is read."),
    R("FG-RSP-2", "Orchestrator Response (Success)", "A response names the request's id as correlationId."),
    R("FG-RSP-3", "Orchestrator Response (Error)", "A refusal has code, message and details, in the document's form."),
    R("FG-RSP-4", "Event Pattern", "The document's event is read, and nothing is expected for it."),
    # --- Supported Requests ---
    R("FG-QAG-1", "Query Agents", "role, status and capabilities filter, and each may be left out.", level="hub"),
    R("FG-QAG-2", "Query Agents", "An agent has id, role, status, capabilities and currentTask.", level="hub"),
    R("FG-QAG-3", "Orchestrator Response (Error)", "A role that nobody has is an INVALID_REQUEST with the role in the"
      " details.", level="hub"),
    R("FG-QTK-1", "Query Tasks", "status, requiredRole and limit filter, and each may be left out.", level="hub"),
    R("FG-QTK-2", "Query Tasks", "A task has id, name, status, requiredRole and dependencies.", level="hub"),
    R("FG-SUB-1", "Submit Task", "The document's task is read, with role, capabilities, dependencies and priority."),
    R("FG-SUB-2", "Submit Task", "The response holds the task, queued, with its id.", level="hub"),
    R("FG-GET-1", "Get Task", "The response holds the task, with its result once it has one.", level="hub"),
    R("FG-ASK-1", "Ask User", "Options with label and value, and a timeout in milliseconds."),
    R("FG-ASK-2", "Ask User", "The response holds the answer and when it was given.", level="hub"),
    # --- Supported Events ---
    R("FG-EVT-1", "Progress Update", "progress lies between 0 and 1, with a message."),
    R("FG-EVT-2", "Progress Update", "Progress is the task's progress.", level="hub"),
    R("FG-EVT-3", "Log Entry", "A log entry has a level, a message and a context.", level="hub"),
    R("FG-EVT-4", "Error Report", "An error report has the error, its stack and whether it can be recovered from."),
    R("FG-EVT-5", "Question (Non-blocking)", "A question may come without waiting, with a context.", level="hub"),
    # --- Orchestrator Notifications ---
    R("FG-NOT-1", "Task Assigned", "An agent is told of a task by its id and a message.", level="hub"),
    R("FG-NOT-2", "Task Cancelled", "An agent is told that a task was cancelled, and why.", level="hub"),
    R("FG-NOT-3", "Shutdown", "An agent is told that the orchestrator stops, and how long it has."),
    R("FG-NOT-4", "Shutdown", "A hub that stops says so to every link before it closes it.", level="transport"),
    # --- Error Codes ---
    R("FG-ERR-1", "Error Codes", "There are six codes, each with its meaning."),
    R("FG-ERR-2", "Error Codes", "Every fault of the hub is told by one of them.", level="hub"),
    # --- Implementation Notes ---
    R("FG-PAR-1", "Parsing Strategy", "JSON with a type is routed; everything else is a log."),
    R("FG-PAR-2", "Parsing Strategy", "An agent routes by type, and finds its request by the correlation id.",
      level="sdk"),
    R("FG-BCK-1", "Backward Compatibility", "An agent that never speaks the protocol still runs, its output kept as"
      " its log.", level="hub"),
    R("FG-BCK-2", "Backward Compatibility", "Task notifications are written to stdin.", level="transport"),
    R("FG-TMO-1", "Timeouts", "A request is given up after 30 seconds, or what is configured.", level="hub"),
    R("FG-TMO-2", "Timeouts", "Progress keeps a task alive.", level="hub"),
    R("FG-COR-1", "Correlation", "One response for each request; a late or unknown one is told and ignored.",
      level="hub"),
    R("FG-COR-2", "Correlation", "Requests whose time is up are forgotten.", level="hub"),
    R("FG-USE-1", "Usage Example", "The document's own agent, line for line, is understood.", level="hub"),
    # --- Security Considerations ---
    R("FG-SEC-1", "Validation", "Every message is checked against its schema before anything happens."),
    R("FG-SEC-2", "Authorization", "An agent sees only the tasks that concern it.", level="hub"),
    R("FG-SEC-3", "Rate Limiting", "More than 100 messages a second are not listened to."),
    R("FG-SEC-4", "Sanitization", "What people are shown is escaped where it is shown.", level="hub"),
    R("FG-SEC-5", "Audit", "Every request, reads included, is in the audit record with the agent's id.", level="hub"),
    # --- Future Enhancements, by forge-D12 ---
    R("FG-FUT-1", "Future Enhancements", "Messages are compressed on a WebSocket that agreed to it.",
      level="transport"),
    R("FG-FUT-2", "Future Enhancements", "MessagePack carries the same messages as JSON."),
    R("FG-FUT-3", "Future Enhancements", "Several messages travel in one frame."),
    R("FG-FUT-4", "Future Enhancements", "Agents publish and subscribe to topics.", level="hub"),
    R("FG-FUT-5", "Future Enhancements", "Remote agents connect by WebSocket.", level="transport"),
    # --- Decisions ---
    R("forge-D1", "forge-D1", "One JSON object a line, at most 1 MiB; a longer one is dropped and noted, never kept."),
    R("forge-D2", "forge-D2", "Ids are any text of 1 to 200 characters."),
    R("forge-D3", "forge-D3", "No JSON, no type or no known family: a log line. An unknown request:"
      " INVALID_MESSAGE_TYPE."),
    R("forge-D4", "forge-D4", "agentId is always overwritten."),
    R("forge-D5", "forge-D5", "Own tasks, submitted tasks, queued tasks one could claim; a planner sees all.",
      level="hub"),
    R("forge-D6", "forge-D6", "update-task, progress 1 with a result, and an error beyond recovery end a task.",
      level="hub"),
    R("forge-D7", "forge-D7", "The statuses, priorities and limits are closed lists."),
    R("forge-D8", "forge-D8", "A question's own timeout beats the request's; it is durable; TIMEOUT when it passes.",
      level="hub"),
    R("forge-D9", "forge-D9", "Beyond the burst, requests are refused as RATE_LIMITED, events dropped and counted.",
      level="hub"),
    R("forge-D10", "forge-D10", "Shutdown: told, then time, then SIGTERM, then SIGKILL.", level="transport"),
    R("forge-D11", "forge-D11", "A crashed agent is started again, with backoff, five times in ten minutes.",
      level="transport"),
    R("forge-D12", "forge-D12", "WebSocket, batches, compression, MessagePack by subprotocol, publish and subscribe.",
      level="transport"),
    R("forge-D13", "forge-D13", "What people see is kept as it came.", level="hub"),
    R("forge-D14-reads", "forge-D14", "A request sees the effect of every message sent before it on the same link.",
      level="hub"),
    R("forge-D14", "forge-D14", "A child gets one task at a time; an assignment carries the task only if it is small.",
      level="transport"),
    R("forge-all-D1", "all-D1", "The agent is who its credential says, whatever a message says.", level="hub"),
    R("forge-all-D2", "all-D2", "Times have an offset; ours are UTC and end in Z."),
    R("forge-all-D3", "all-D3", "Size, depth, strict JSON, shape, meaning: checked in this order."),
    R("forge-all-D4", "all-D4", "A sender's credential is never forwarded, stored or logged.", level="hub"),
    R("forge-all-D5", "all-D5", "The same request again has the first outcome; other content is refused.", level="hub"),
    R("forge-all-D6", "all-D6", "Fields nobody knows are accepted and kept."),
    R("forge-all-D7", "all-D7", "The trace travels in _meta.traceparent.", level="hub"),
    R("forge-all-D8", "all-D8", "The hub's states have one name each in forge's words.", level="hub"),
]  # fmt: skip

#: Shown by nobody yet. Whoever writes the test takes the id out of here.
AWAITED: set[str] = set()
