"""Chiffon's spoke: its envelopes ⇄ the hub's commands and deliveries.

inbound     a message of an agent becomes a command        exchange   ids and names both directions agree on
outbound    an outgoing message becomes one or more messages          failures   faults become `error` payloads, and
back registration  an agent's introduction becomes a command    again      a split result, told once more

What chiffon has no word for travels in `x_custom_fields`, which the document leaves to extensions:

    field             on                     means
    ----------------  ---------------------  ---------------------------------------------------------------------
    agent_id          requests in            the one instance that shall do it (D8)
    agent_id          everything out         the instance that does the work
    delivery_id       everything out         what to acknowledge; of a split output, the last one counts
    attempt           requests out           which attempt this is, from the second on
    priority          requests in            low | normal | high | critical
    parent_task_id    requests in            the task that this one is part of
    dependencies      requests in            tasks that must be done first
    message thinking  statuses, both ways    words beside the document's fields; the step's name says it in short
    tool_use          statuses, both ways    {id, name, input}
    tool_result       statuses, both ways    {id, output, is_error}
    files             requests in            ids of files to attach, kept at /api/agent/files before
    file              statuses in            the id of one, kept likewise
    file              statuses out           {id, name, mime_type, size, sha256}: fetch it at /api/agent/files/{id}
    attachments       requests out           a list of the same
    question          a `paused` status in   {question, options?, timeout_seconds?, default?}: ask a person
    question          a `paused` status out  {question, options}: a person is being asked
    result            results, both ways     the result as JSON, beside the text in `output`
    task_id           errors out             the task that the error is about
    traceparent       everything, both ways  the W3C trace context (all-D7)
    token             never kept             a credential; removed on receipt (all-D4)

Our codes 5900-5902 (`messages.error_table`) say to an agent "stop this task", and to a requester "was cancelled",
"what it waited for failed" and "failed". A work_status *to* an agent asks it to pause (`paused`) or to go on
(`running`).
"""

from dragoman.bindings.chiffon.again import in_pieces, wire_again
from dragoman.bindings.chiffon.exchange import receipts, wire_name, wire_request_id
from dragoman.bindings.chiffon.failures import fault_of, refusal, status_of
from dragoman.bindings.chiffon.inbound import command_of, files_named, with_files
from dragoman.bindings.chiffon.outbound import wire_of
from dragoman.bindings.chiffon.registration import registered, registration_of

__all__ = [
    "command_of",
    "fault_of",
    "files_named",
    "in_pieces",
    "receipts",
    "refusal",
    "registered",
    "registration_of",
    "status_of",
    "wire_again",
    "wire_name",
    "wire_of",
    "wire_request_id",
    "with_files",
]
