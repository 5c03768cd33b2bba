"""Coven's spoke: its messages ⇄ the hub's commands and deliveries.

inbound       an agent's event or a caller's message becomes a command
outbound      work becomes a message to an agent, a task's events become responses to a caller
measure       what is too long for a message to a caller
registration  an agent's introduction becomes a command
failures      faults become `error` and gRPC statuses, and back
exchange      names, and how the hub's JSON becomes text

What coven has no word for travels in fields numbered from 1001 on; `protocols/coven/coven.proto` lists them.
"""

from dragoman.bindings.coven.exchange import CHAT, PROTOCOL, traceparent
from dragoman.bindings.coven.failures import fault_of, status_of
from dragoman.bindings.coven.inbound import end_of, progress_of, submit_of, text_of
from dragoman.bindings.coven.measure import in_measure
from dragoman.bindings.coven.outbound import (
    attached,
    attachments_in,
    ends_in_pieces,
    file_in,
    message_of,
    reason_of,
    responses_of,
)
from dragoman.bindings.coven.registration import registration_of, speaks_for_itself

__all__ = [
    "CHAT",
    "PROTOCOL",
    "attached",
    "attachments_in",
    "end_of",
    "ends_in_pieces",
    "fault_of",
    "file_in",
    "in_measure",
    "message_of",
    "progress_of",
    "reason_of",
    "registration_of",
    "responses_of",
    "speaks_for_itself",
    "status_of",
    "submit_of",
    "text_of",
    "traceparent",
]
