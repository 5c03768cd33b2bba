"""Every clause of chiffon 1.0 and every decision about it, with the place where it can be shown.

`clause` is the heading of the document, or the decision's own number. The sentences are ours.
"""

from __future__ import annotations

from tests.conformance.manifest import Requirement as R

REQUIREMENTS = [
    # --- Message Envelope ---
    R("CH-ENV-1", "Message Envelope", "A message without a required field is refused, and the field is named."),
    R("CH-ENV-2", "Message Envelope", "x_custom_fields is an object and may be left out."),
    R("CH-ENV-3", "Message Envelope", "message_id, trace_id and request_id are UUIDs."),
    R("CH-ENV-4", "Message Envelope", "type is one of work_request, work_status, work_result, error."),
    R("CH-ENV-5", "Message Envelope", "timestamp is an ISO 8601 time."),
    R("CH-ENV-6", "Message Envelope", "from_agent and to_agent name kinds of agents.",
      divergence="Kinds beyond the document's five are accepted: agents of other protocols need a name too."),
    R("CH-ENV-7", "Message Envelope", "The document's whole envelope is read, and written back equal."),
    R("CH-ENV-8", "Overview", "Every answer carries the trace_id of the request.", level="hub"),
    # --- work_request ---
    R("CH-REQ-1", "work_request", "A request names task, work type and parameters; hints may be left out."),
    R("CH-REQ-2", "work_request", "A request travels from the requester to the performer, never back.", level="hub"),
    R("CH-REQ-3", "work_request", "The document's request is read as its table says."),
    R("CH-REQ-4", "work_request", "hints.max_memory_mb says who may be given it.", level="hub"),
    R("CH-REQ-5", "work_request", "A need of GPU memory that no agent could meet is 5005, and names gpu_vram_mb.",
      level="hub", divergence="The document has no hint for it: it is max_gpu_vram_mb, or gpu_vram_mb."),
    # --- work_status ---
    R("CH-STA-1", "work_status", "The document's status is read as its table says."),
    R("CH-STA-2", "work_status", "status is running, step_completed or paused; progress lies between 0 and 100."),
    R("CH-STA-3", "work_status", "Any number of statuses may come before the result.", level="hub"),
    R("CH-STA-4", "work_status", "An agent at work reports every 5 to 30 seconds by itself.", level="sdk"),
    # --- work_result ---
    R("CH-RES-1", "work_result", "The document's two results are read as the table says."),
    R("CH-RES-2", "work_result", "One result ends an exchange: neither a status nor another result follows.",
      level="hub"),
    # --- error ---
    R("CH-ERR-1", "error", "Either side may send an error, also outside any exchange.", level="hub"),
    R("CH-ERR-2", "error", "Codes lie between 5001 and 5999; those the document does not define are accepted."),
    R("CH-ERR-3", "Error Codes", "Names and retry flags are those of the document's table."),
    R("CH-ERR-4", "Error Codes", "Each code's context has the fields of the table."),
    # --- Reliability Patterns ---
    R("CH-TMO-1", "Timeouts", "30 seconds without a sign of life from the agent is a timeout.", level="hub"),
    R("CH-TMO-2", "Timeouts", "hints.max_duration_seconds keeps a task from timing out before it.", level="hub"),
    R("CH-BRK-1", "Circuit Breaker", "Five failures in a row stop new work to that agent for 60 seconds.", level="hub"),
    R("CH-BRK-2", "Circuit Breaker", "Work under way goes on while the breaker is open.", level="hub"),
    R("CH-BRK-3", "Circuit Breaker", "After 60 seconds a health check decides.", level="hub"),
    R("CH-RTY-1", "Retries", "A message is tried four times, at 0, 1, 2 and 4 seconds.", level="hub"),
    R("CH-RTY-2", "Retries", "A retry has the request_id of the first attempt.", level="hub"),
    R("CH-RTY-3", "Retry Conditions", "Only 5001, 5002 and 5005 are retried."),
    R("CH-RTY-4", "Retry Conditions", "Any other error reaches the user at once.", level="hub"),
    R("CH-IDM-1", "Idempotency", "A new request runs, and its result is remembered by request_id.", level="sdk"),
    R("CH-IDM-2", "Idempotency", "A request seen before gets the first result, without a second run.", level="sdk"),
    R("CH-IDM-3", "Idempotency", "A result lost on the way is had again by repeating the request.", level="sdk"),
    R("CH-LRG-1", "Large Payloads", "An output above 1 MB is split into blocks of 256 KB."),
    R("CH-LRG-2", "Large Payloads", "Each block says which bytes it holds; the document's labels are read."),
    R("CH-LRG-3", "Large Payloads", "The blocks give the output back, byte for byte."),
    R("CH-LRG-4", "Large Payloads", "A task shows the whole output after its blocks came.", level="hub"),
    # --- Full workflow, versions, authentication ---
    R("CH-FLW-1", "Full Workflow", "A request, five statuses and a result pass between two agents.", level="hub"),
    R("CH-VER-1", "Version Negotiation", "An agent says which versions it speaks when it registers."),
    R("CH-VER-2", "Version Negotiation", "The lowest common version is chosen, and messages are written in it."),
    R("CH-VER-3", "Backwards Compatibility", "A message of a version that is not spoken is answered with 5006."),
    R("CH-AUT-1", "Authentication", "Each agent has its own random token of 32 characters.", level="hub"),
    R("CH-AUT-2", "Token Storage", "A token is never logged or shown again.", level="hub"),
    R("CH-AUT-3", "Token Validation", "Every message's token is checked, in header or field.", level="transport"),
    R("CH-AUT-4", "Token Validation", "A bad token is answered with 5004, which is not retried.", level="transport"),
    # --- What we add on a WebSocket ---
    R("CH-WS-1", "ours", "A client may acknowledge deliveries with a control frame; the hub never sends one."),
    R("CH-WS-2", "ours", "Receipts go only to a client that asked for them."),
    R("CH-WS-3", "ours", "A broken frame is an event to answer, and the link goes on."),
    R("CH-WS-4", "ours", "What the hub holds for one connection is bounded: beyond it, nothing more is read.",
      level="transport"),
    # --- Decisions ---
    R("all-D1", "all-D1", "What a message says about its sender agrees with the credential.", level="hub"),
    R("all-D2", "all-D2", "Times have an offset; ours are UTC and end in Z."),
    R("all-D3", "all-D3", "Size, depth, strict JSON, shape, meaning: checked in this order."),
    R("all-D4", "all-D4", "A sender's credential is never forwarded, stored or logged.", level="hub"),
    R("all-D5", "all-D5", "Same id and content: the first outcome. Other content: refused. Errors are not cached."),
    R("all-D6", "all-D6", "Fields nobody knows are accepted and travel on."),
    R("all-D7", "all-D7", "The trace id is a W3C trace id once its dashes are gone.", level="hub"),
    R("all-D8", "all-D8", "A task has one life in the hub whatever protocol it came by.", level="hub"),
    R("chiffon-D1", "chiffon-D1", "UUIDs of any version are read."),
    R("chiffon-D2", "chiffon-D2", "protocol_version must be there."),
    R("chiffon-D3", "chiffon-D3", "Labels out are exact and exclusive; labels in may be rounded to k."),
    R("chiffon-D4", "chiffon-D4", "Results are split alike; gaps, overlaps, sets too large or never whole: 5003."),
    R("chiffon-D5", "chiffon-D5", "The first answer acknowledges the request.", level="hub"),
    R("chiffon-D5-amqp", "chiffon-D5", "The hub acknowledges after its commit; a confirm settles notices, never work.",
      level="transport"),
    R("chiffon-D6", "chiffon-D6", "An idle clock and a total deadline, raised by the hint; 5002 soon.", level="hub"),
    R("chiffon-D7", "chiffon-D7", "Only 5001 and 5002 count for the breaker.", level="hub"),
    R("chiffon-D8", "chiffon-D8", "The hub picks an instance; x_custom_fields.agent_id pins one.", level="hub"),
    R("chiffon-D9", "chiffon-D9", "Lowest by default, highest by setting; none in common is 5006 with ours listed."),
    R("chiffon-D13-polls", "chiffon-D13", "A poll takes up to max messages, a task's in order, and may acknowledge.",
      level="transport"),
    R("chiffon-D10", "chiffon-D10", "Long poll with ack, WebSocket, callback; AMQP.", level="transport"),
    R("chiffon-D10-amqp", "chiffon-D10", "Exchange chiffon, queues chiffon.hub and chiffon.agent.<id>; the token is"
      " taken out of header or field.", level="transport"),
    R("chiffon-D11", "chiffon-D11", "An error copies request_id and trace_id of what it answers.", level="hub"),
    R("chiffon-D12", "chiffon-D12", "success means exit code 0 and nothing else does."),
    R("chiffon-D13", "chiffon-D13", "Tasks can be cancelled, paused and resumed over REST.", level="transport"),
    R("chiffon-D14", "chiffon-D14", "step.total and resources_used.memory_mb are read and written."),
    R("chiffon-D15", "chiffon-D15", "Error contexts have exactly the documented fields."),
    R("chiffon/B3", "B3", "A paused task goes on with the answer in a new request of the same task_id.", level="hub"),
]  # fmt: skip

#: Shown by nobody yet. Whoever writes the test takes the id out of here.
AWAITED: set[str] = set()
