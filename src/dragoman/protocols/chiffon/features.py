"""What chiffon can carry: one column of the table in `messages/features.py`."""

from __future__ import annotations

from dragoman.messages.features import (
    BESIDE_OUTPUT,
    FAULTS,
    HUB_OBEYS,
    NO_DIRECT_MESSAGES,
    NO_LIMITS_OR_CONTEXT,
    NOTHING_BETWEEN_AGENTS,
    THROUGH_THE_API,
    Features,
    lost,
    near,
)
from dragoman.messages.features import Feature as F

FEATURES = Features(
    protocol="chiffon",
    caller_sends={
        F.DESCRIPTION: lost("chiffon names work by its type only"),
        F.THREAD: lost("chiffon has no conversations"),
        F.BUDGET: THROUGH_THE_API,
        F.PAUSE: near("over HTTP"),
        **NO_LIMITS_OR_CONTEXT,
        F.LIMITS: near("of memory; there is no field for quality"),
        **NOTHING_BETWEEN_AGENTS,
    },
    agent_receives={
        F.LIMITS: near("of quality, in x_custom_fields"),
        F.CONTEXT: near("in x_custom_fields"),
        F.PRIORITY: HUB_OBEYS,
        F.BUDGET: HUB_OBEYS,
        F.PAUSE: near("as a work_status from the hub"),
        F.HELP: near("as a task, whose result is the help"),
        F.HANDOVER: near("as work, with its story in parameters.handover"),
        F.DIRECT_MESSAGE: NO_DIRECT_MESSAGES,
        F.DEADLINE: near("as the whole seconds that are left, in hints.max_duration_seconds"),
        F.DEPENDENCIES: HUB_OBEYS,
        F.DESCRIPTION: near("in x_custom_fields"),
        F.THREAD: near("in x_custom_fields"),
        F.ATTACHMENT: near("as a reference in x_custom_fields, fetched over HTTP"),
        F.CANCEL: near("as an error of code 5900, which the document leaves free"),
        F.ANSWER: near("as a new work_request of the same task (B3)"),
    },
    agent_sends={
        F.MESSAGE: near("as the name of a step, or in x_custom_fields"),
        F.THINKING: near("in x_custom_fields"),
        F.TOOL_USE: near("in x_custom_fields"),
        F.TOOL_RESULT: near("in x_custom_fields"),
        F.FILE: near("kept over HTTP first, then named in x_custom_fields"),
        F.QUESTION: near("as a paused status, with the question in x_custom_fields (B3)"),
        F.RESULT: near("in x_custom_fields, beside the text"),
        F.FAILURE: near("of failed work, in the last line of the output, 300 characters of it at most"),
    },
    caller_receives={
        F.MESSAGE: near("as the name of a step, and in x_custom_fields"),
        F.THINKING: near("in x_custom_fields"),
        F.TOOL_USE: near("in x_custom_fields"),
        F.TOOL_RESULT: near("in x_custom_fields"),
        F.FILE: near("as a reference in x_custom_fields, fetched over HTTP"),
        F.QUESTION: near("as a paused status, with its words in x_custom_fields"),
        F.RESULT: near("in x_custom_fields, beside its text"),
        F.USAGE: near("in resources_used; what that has no field for, in x_custom_fields"),
    },
    cut_above=FAULTS | BESIDE_OUTPUT,
    passes_bytes_on=True,
)
