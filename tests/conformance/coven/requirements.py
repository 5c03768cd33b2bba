"""Every clause of coven's document and every decision about it, with the place where it can be shown.

`clause` is the heading of the document, or the decision's own number. The sentences are ours.
"""

from __future__ import annotations

from tests.conformance.manifest import Requirement as R

REQUIREMENTS = [
    # --- Connection ---
    R("CO-CON-1", "Overview", "The whole lifecycle of the document's picture passes between two ends."),
    R("CO-CON-2", "Connection", "The service is coven.CovenControl, its one call AgentStream, streaming both ways.",
      level="transport"),
    R("CO-CON-3", "Connection", "The default port is 50051."),
    # --- Messages: Agent -> Gateway ---
    R("CO-MSG-1", "Messages", "Every message has the document's fields under the document's numbers."),
    R("CO-REG-1", "RegisterAgent", "register is the first message of a stream."),
    R("CO-REG-2", "RegisterAgent", "The document's registration is read."),
    R("CO-REG-3", "RegisterAgent", "A missing agent_id is INVALID_ARGUMENT.", level="transport"),
    R("CO-REG-4", "RegisterAgent", "A second agent of the same id is ALREADY_EXISTS.", level="transport"),
    R("CO-RSP-1", "MessageResponse", "A response has the request_id of the message it answers."),
    R("CO-RSP-2", "MessageResponse", "Many responses may answer one request."),
    R("CO-RSP-3", "Event Types", "All seven events are read, and written back equal."),
    R("CO-RSP-4", "Event Types", "done and error end a request; the other five do not."),
    R("CO-RSP-5", "MessageResponse", "Every request ends with done or error.", level="hub"),
    R("CO-HBT-1", "Heartbeat", "A heartbeat may come at any time and asks for nothing."),
    # --- Messages: Gateway -> Agent ---
    R("CO-WEL-1", "Welcome", "A good registration is answered with the gateway's id and the agent's own."),
    R("CO-SND-1", "SendMessage", "A request carries id, thread, sender, content and attachments."),
    R("CO-SND-2", "SendMessage", "Attachments arrive byte for byte.", level="transport"),
    R("CO-SHD-1", "Shutdown", "After shutdown the request under way is finished and none follows."),
    # --- Supporting Types ---
    R("CO-SUP-1", "Supporting Types", "A tool's use and its result share an id, and a failed one says so."),
    R("CO-SUP-2", "Supporting Types", "A file has name, type and bytes, and reaches whoever asked.", level="hub"),
    # --- Implementation Notes ---
    R("CO-IMP-1", "Connection Handling", "Response headers come before anything is sent.", level="transport"),
    R("CO-IMP-2", "Connection Handling", "After Welcome the agent gets requests.", level="transport"),
    R("CO-REC-1", "Error Recovery", "An agent that comes back under its id gets what waits.", level="transport"),
    R("CO-REC-2", "Error Recovery", "An agent whose stream ended is no longer there.", level="transport"),
    R("CO-CCY-1", "Concurrency", "One request at a time per stream."),
    R("CO-CCY-2", "Concurrency", "Heartbeats between the events of a request disturb nothing."),
    # --- What we add ---
    R("CO-EXT-1", "ours", "Our fields have numbers from 1001 on, and a peer that does not know them is served."),
    R("CO-EXT-2", "ours", "cancel goes only to an agent that declared it; what others say about it is dropped."),
    R("CO-EXT-3", "ours", "A caller sends a message and hears its events to the end, resumable by cursor.",
      level="transport"),
    R("CO-EXT-4", "ours", "A question ends the turn, and its answer is the next message in the thread.", level="hub"),
    # --- Decisions ---
    R("coven-D1", "coven-D1", "Unknown fields and events are tolerated; a response without an event is counted."),
    R("coven-D2", "coven-D2", "Response headers are flushed before the first message is read.", level="transport"),
    R("coven-D3", "coven-D3", "register first, once and soon: else INVALID_ARGUMENT, ignored, DEADLINE_EXCEEDED.",
      level="transport"),
    R("coven-D4", "coven-D4", "A live stream keeps its id, a dead one is replaced, only by its own principal.",
      level="transport"),
    R("coven-D5", "coven-D5", "One message at a time per stream; the rest waits durably.", level="transport"),
    R("coven-D6", "coven-D6", "A stream that ends with a request open is a retryable failure, never a silent end.",
      level="transport"),
    R("coven-D7", "coven-D7", "Events about unknown or finished requests are dropped and counted; presence counts."),
    R("coven-D8", "coven-D8", "full_response, or all text that came."),
    R("coven-D9", "coven-D9", "Messages up to 16 MiB, content once; attachments bounded; heartbeats are optional.",
      level="transport"),
    R("coven-D10", "coven-D10", "Shutdown, patience, then UNAVAILABLE.", level="transport"),
    R("coven-D11", "coven-D11", "A bearer token, save for guests on loopback.", level="transport"),
    R("coven-D12", "coven-D12", "A slow reader slows its sender, and nothing is dropped.", level="transport"),
    R("coven/all-D1", "all-D1", "agent_id and sender agree with the credential.", level="transport"),
    R("coven/all-D3", "all-D3", "Size before shape before meaning, and the refusal names the field."),
    R("coven/all-D4", "all-D4", "A token is never forwarded, stored or logged.", level="transport"),
    R("coven/all-D5", "all-D5", "Same request id and content: the same task. Other content: refused.",
      level="transport"),
    R("coven/all-D6", "all-D6", "Fields nobody knows travel on to a caller that speaks coven.", level="hub"),
    R("coven/all-D7", "all-D7", "traceparent travels in metadata and in the message.", level="transport"),
    R("coven/all-D8", "all-D8", "A message becomes a task with the one life that all tasks have.", level="transport"),
    R("coven/B3", "B3", "The question ends the turn with done; the answer is the next message of the thread.",
      level="hub"),
    R("coven/B4", "B4", "A cancelled request is told to agents that can hear it, else its result is ignored.",
      level="transport"),
]  # fmt: skip

#: Shown by nobody yet. Whoever writes the test takes the id out of here.
AWAITED: set[str] = set()
