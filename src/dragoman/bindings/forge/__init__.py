"""Forge's spoke: its messages ⇄ the hub's commands and deliveries.

inbound     a message of an agent becomes a command        views         tasks and agents; who sees what
outbound    an outgoing message becomes one or more messages          failures      faults become errors of six codes,
and back vocabulary  statuses, priorities, names, side by side      registration  what an agent says of itself
"""

from dragoman.bindings.forge.failures import error_of, fault_in, fields_in
from dragoman.bindings.forge.inbound import claim, command_of, digest, submission
from dragoman.bindings.forge.outbound import in_pieces, messages_of, stamp
from dragoman.bindings.forge.views import agent_view, file_view, is_kept_from, may_see, order_view, shown_to, task_view
from dragoman.bindings.forge.vocabulary import PROTOCOL, STATUS_IN, role_is_known, status_of

__all__ = [
    "PROTOCOL",
    "STATUS_IN",
    "agent_view",
    "claim",
    "command_of",
    "digest",
    "error_of",
    "fault_in",
    "fields_in",
    "file_view",
    "in_pieces",
    "is_kept_from",
    "may_see",
    "messages_of",
    "order_view",
    "role_is_known",
    "shown_to",
    "stamp",
    "status_of",
    "submission",
    "task_view",
]
