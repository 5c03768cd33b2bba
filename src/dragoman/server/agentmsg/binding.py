"""Agentmsg's spoke: its messages ⇄ the hub's commands and deliveries.

inbound       a message of an agent becomes commands          outbound   an outgoing message becomes a message
reports       what is said about tasks                        answers    what the hub itself answers
conversation  what agents ask of each other                   failures   faults become ErrorReports, and back
views         tasks in agentmsg's words                       names      what tasks and messages are called
exchange      one message, and the direct message it is carried as
"""

from dragoman.server.agentmsg.answers import (
    acknowledgment,
    change_view,
    entity_view,
    state_answer,
    state_update,
    welcome,
)
from dragoman.server.agentmsg.failures import (
    error_of,
    fault_in,
    fault_of,
    outlived,
    refusal,
    report,
    report_of,
    status_of,
)
from dragoman.server.agentmsg.inbound import CARRIED, acknowledged, change_of, commands_of, otherwise
from dragoman.server.agentmsg.names import PROTOCOL, called, delivery_named, derived_v4, task_id
from dragoman.server.agentmsg.outbound import ends_in_pieces, wire_of
from dragoman.server.agentmsg.views import recounted

__all__ = [
    "CARRIED",
    "PROTOCOL",
    "acknowledged",
    "acknowledgment",
    "called",
    "change_of",
    "change_view",
    "commands_of",
    "delivery_named",
    "derived_v4",
    "ends_in_pieces",
    "entity_view",
    "error_of",
    "fault_in",
    "fault_of",
    "otherwise",
    "outlived",
    "recounted",
    "refusal",
    "report",
    "report_of",
    "state_answer",
    "state_update",
    "status_of",
    "task_id",
    "welcome",
    "wire_of",
]
