"""Every clause of the agentmsg document and every decision about it, with the place where it can be shown.

`clause` is the heading of the document, or the decision's own number. The sentences are ours. What holds for all
protocols has its own ids here (`agentmsg/all-…`): another protocol's test shows nothing about this one.
"""

from __future__ import annotations

from tests.conformance.manifest import Requirement as R

REQUIREMENTS = [
    # --- Message Format Standards ---
    R("AM-MSG-1", "Base Message Structure", "A message that lacks a field is refused, and the field named."),
    R("AM-MSG-2", "Base Message Structure", "id is a UUID v4.",
      divergence="UUIDs of any version are read, as in the other protocols; ours are of version 4."),
    R("AM-MSG-3", "Base Message Structure", "timestamp is an ISO 8601 time."),
    R("AM-MSG-4", "Base Message Structure", "from and to name the sender and the recipient."),
    R("AM-MSG-5", "Base Message Structure", "The payload has the form of its type, and what does not fit is refused."),
    R("AM-MTA-1", "Base Message Structure", "priority is one of four; retry_count and max_retries are counts."),
    R("AM-MTA-2", "Base Message Structure", "correlation_id links an answer with what it answers."),
    R("AM-MTA-3", "Base Message Structure", "After ttl_ms a message is not delivered any more."),
    R("AM-MTA-4", "Base Message Structure", "retry_count says which retry this is."),
    R("AM-MTA-5", "Base Message Structure", "max_retries bounds the retries of its message."),
    R("AM-TYP-1", "Message Types", "The document's ten types are known, and no others but ours."),
    # --- Task Handoff Protocol ---
    R("AM-HND-1", "Handoff Request Format", "A request has the document's fields."),
    R("AM-HND-2", "Handoff Request Format", "There are five reasons."),
    R("AM-HND-3", "Handoff Response Format", "A response has the document's fields."),
    R("AM-HND-4", "Task Handoff Protocol", "A request reaches its target, and the answer whoever asked.", level="hub"),
    R("AM-HND-5", "Handoff Request Format", "Each reason decides where the task goes.", level="hub"),
    R("AM-HND-6", "Handoff Request Format", "A handoff nobody answered by its deadline leaves the task where it was.",
      level="hub"),
    R("AM-HND-7", "Handoff Request Format", "Context and history arrive whole at the new owner.", level="hub"),
    # --- Help Request Protocol ---
    R("AM-HLP-1", "Help Request Format", "A request has the document's fields."),
    R("AM-HLP-2", "Help Request Format", "There are five types of help."),
    R("AM-HLP-3", "Help Request Format", "Urgency is one of four levels, each with a priority."),
    R("AM-HLP-4", "Help Response Format", "A response has the document's fields."),
    R("AM-HLP-5", "Help Response Format", "There are five types of response."),
    R("AM-HLP-6", "Help Request Protocol", "A request reaches who can help, or a person; the response returns.",
      level="hub"),
    R("AM-HLP-7", "Help Request Format", "A task that waits for help goes on when it came, or when its time is up.",
      level="hub"),
    R("AM-HLP-8", "Help Response Format", "A follow-up belongs to the same request.", level="hub"),
    # --- Status Update Protocol ---
    R("AM-STA-1", "Status Update Format", "An update has the document's fields."),
    R("AM-STA-2", "Status Update Format", "Shares lie between 0 and 100, rates between 0 and 1."),
    R("AM-STA-3", "Status Update Format", "An agent is in one of five states."),
    R("AM-STA-4", "Status Update Format", "The registry shows what an agent said last, and what before.", level="hub"),
    R("AM-STA-5", "Status Update Format", "Work goes by load, error rate and next_available.", level="hub"),
    R("AM-CTX-1", "Status Update Format", "A task's context has its type, priority, dependencies and history."),
    R("AM-CTX-2", "Status Update Format", "Constraints name the capabilities, and may bound tokens, time and budget."),
    R("AM-CTX-3", "Status Update Format", "A resource is one of five types, with a URL and a title."),
    R("AM-CTX-4", "Status Update Format", "Constraints hold for whoever does the task.", level="hub"),
    # --- Error Reporting Protocol ---
    R("AM-ERR-1", "Error Report Format", "A report has the document's fields."),
    R("AM-ERR-2", "Error Report Format", "There are eight types of errors, each retried or not."),
    R("AM-ERR-3", "Error Report Format", "Severity is one of four levels; recovery has one of three outcomes."),
    R("AM-ERR-4", "Error Reporting Protocol", "Reports are seen with their task and their agent.", level="hub"),
    R("AM-ERR-5", "Error Reporting Protocol", "Reports drive the breaker and retries.", level="hub"),
    # --- Message Routing Rules ---
    R("AM-RTE-1", "Routing Priority", "Each type has its place among critical, high, normal and low."),
    R("AM-RTE-2", "Routing Priority", "What is more urgent is delivered first.", level="hub"),
    R("AM-DLV-1", "Message Delivery Guarantees", "Critical and high: sent again until acknowledged, acted on once."),
    R("AM-DLV-2", "Message Delivery Guarantees", "Normal and low: never sent again, never delivered twice."),
    R("AM-DLV-3", "Message Delivery Guarantees", "The messages of one task arrive in order.", level="hub"),
    R("AM-DLV-4", "Message Delivery Guarantees", "Without an ACK the wait grows exponentially."),
    R("AM-DLV-5", "Message Delivery Guarantees", "What the hub accepted survives its crash.", level="hub"),
    R("AM-DLV-6", "Message Delivery Guarantees", "What expired is on record, and its sender was told.", level="hub"),
    R("AM-DLV-7", "Message Delivery Guarantees", "What was never acknowledged is among the dead letters.", level="hub"),
    R("AM-RTY-1", "Retry Logic", "Attempts, delays, multiplier and jitter are configured, and held to."),
    R("AM-RTY-2", "Retry Logic", "A message may have a configuration of its own, the policy one for all, at once.",
      level="hub"),
    R("AM-RTY-3", "Retry Logic", "max_attempts and max_retries of one message agree: attempts are retries and one."),
    # --- Shared State Management ---
    R("AM-SST-1", "State Synchronization", "The four registries and their records have the document's fields."),
    R("AM-SST-2", "State Synchronization", "A task's state is one of five; a resource one of four."),
    R("AM-SST-3", "State Synchronization", "The state can be read, whole and by entity.", level="hub"),
    R("AM-SST-4", "State Synchronization", "Who watches sees every change, also after a break.", level="hub"),
    R("AM-SST-5", "State Synchronization", "A policy that changed holds at once.", level="hub"),
    R("AM-UPD-1", "State Update Protocol", "An update has the document's fields: three operations, four entities."),
    R("AM-UPD-2", "State Update Protocol", "CREATE, UPDATE and DELETE do what they say.", level="hub"),
    # --- What we add on a link ---
    R("AM-LNK-1", "ours", "Each end says only what it may, and only in its own name."),
    R("AM-LNK-2", "ours", "An ACK names one message or many, and is never acknowledged itself."),
    R("AM-LNK-3", "ours", "A broken frame is an event to answer, and the link goes on."),
    R("AM-LNK-4", "ours", "A link's memory is bounded."),
    R("AM-LNK-5", "ours", "An agent may register, and is welcomed; it may also just speak."),
    R("AM-LNK-6", "ours", "What is not acknowledged outlives its link and is said again on the next."),
    R("AM-LNK-7", "ours", "HTTP with long poll and ack, and a WebSocket, carry the same messages.", level="transport"),
    # --- Decisions ---
    R("agentmsg-D1", "agentmsg-D1", "A Date is an RFC 3339 string, a Map a JSON object."),
    R("agentmsg-D2", "agentmsg-D2", "The open payloads and the added types have a form; answers correlate."),
    R("agentmsg-D3", "agentmsg-D3", "The higher of the message's priority and its type's counts."),
    R("agentmsg-D4", "agentmsg-D4", "Kept until the ACK, redelivered, deduplicated by id; or at most once."),
    R("agentmsg-D5", "agentmsg-D5", "A task's messages are a lane; only its head is delivered; nobody starves.",
      level="hub"),
    R("agentmsg-D6", "agentmsg-D6", "Expired: dropped, and the sender of a critical or high one gets a TIMEOUT."),
    R("agentmsg-D6a", "agentmsg-D6a", "An ESCALATION reaches the requester and the next helper with its content."),
    R("agentmsg-D7", "agentmsg-D7", "3 retries, 1000 ms doubling to 30000 with jitter, then a dead letter."),
    R("agentmsg-D8", "agentmsg-D8", "Acceptance moves a task atomically; the earlier deadline; at most 8 hops.",
      level="hub"),
    R("agentmsg-D9", "agentmsg-D9", "Versions are the hub's; a stale one is refused; changes are a merge patch.",
      level="hub"),
    R("agentmsg-D10", "agentmsg-D10", "Budgets are reserved before dispatch and settled after.", level="hub"),
    R("agentmsg-D11", "agentmsg-D11", "The policy's defaults hold until somebody changes them.", level="hub"),
    R("agentmsg-D12", "agentmsg-D12", "Silent for three heartbeats is OFFLINE, and its work goes back.", level="hub"),
    R("agentmsg-D13", "agentmsg-D13", "from and to agree with their copies in payloads."),
    R("agentmsg/all-D1", "all-D1", "from agrees with the credential.", level="transport"),
    R("agentmsg/all-D2", "all-D2", "Times have an offset; ours are UTC and end in Z."),
    R("agentmsg/all-D3", "all-D3", "Size, depth, strict JSON, shape, meaning: checked in this order."),
    R("agentmsg/all-D4", "all-D4", "A sender's credential is never forwarded, stored or logged.", level="transport"),
    R("agentmsg/all-D5", "all-D5", "The same message again has the first outcome; other content is refused.",
      level="hub"),
    R("agentmsg/all-D6", "all-D6", "Fields nobody knows are accepted and travel on."),
    R("agentmsg/all-D7", "all-D7", "The trace travels in metadata.traceparent.", level="hub"),
    R("agentmsg/all-D8", "all-D8", "The hub's states have one name each in agentmsg's words.", level="hub"),
    R("agentmsg/B3", "B3", "A question to a person is a HELP_REQUEST, its answer a HELP_RESPONSE.", level="hub"),
    R("agentmsg/B4", "B4", "A cancelled task is told as TASK_UPDATE with status cancelled.", level="hub"),
]  # fmt: skip

#: Shown by nobody yet. Whoever writes the test takes the id out of here.
AWAITED: set[str] = set()
