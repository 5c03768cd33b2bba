"""What a2acp can carry: one column of the table in `messages/features.py`."""

from __future__ import annotations

from dragoman.messages.features import (
    FAULTS,
    HUB_OBEYS,
    NO_LIMITS_OR_CONTEXT,
    NOTHING_BETWEEN_AGENTS,
    THROUGH_THE_API,
    Features,
    lost,
    near,
)
from dragoman.messages.features import Feature as F

OUR_EVENT = near("in an event of ours")
SHORT_EVENT = near("in an event of ours; what is above a megabyte is kept, and not told")
SHORT = near("in a message of a megabyte at most")

FEATURES = Features(
    protocol="a2acp",
    caller_sends={
        F.PRIORITY: lost("a2acp has no field for it"),
        F.INPUT: SHORT,
        F.DEADLINE: lost("a caller has no field for it; the contract's time for an answer counts instead"),
        F.DEPENDENCIES: lost("a2acp has no field for it"),
        F.DESCRIPTION: lost("a2acp names work by its intent only"),
        F.THREAD: lost("a2acp has no conversations"),
        F.ATTACHMENT: lost("a2acp has no message for a file"),
        F.BUDGET: THROUGH_THE_API,
        F.PAUSE: THROUGH_THE_API,
        **NO_LIMITS_OR_CONTEXT,
        **NOTHING_BETWEEN_AGENTS,
        F.DIRECT_MESSAGE: near("as an event, under a contract"),
    },
    agent_receives={
        F.LIMITS: near("in a field of ours"),
        F.CONTEXT: near("in a field of ours; not that of personal work"),
        F.PRIORITY: HUB_OBEYS,
        F.DEADLINE: HUB_OBEYS,
        F.DEPENDENCIES: HUB_OBEYS,
        F.BUDGET: HUB_OBEYS,
        F.DESCRIPTION: near("in a field of ours"),
        F.THREAD: near("in a field of ours"),
        F.ATTACHMENT: near("as a reference in the payload, fetched over HTTP"),
        F.PAUSE: near("as an event of ours"),
        F.ANSWER: OUR_EVENT,
        F.HELP: near("as a request, whose response is the help"),
        F.HANDOVER: near("as a request, with its story in payload.handover"),
        F.DIRECT_MESSAGE: near("as an event, whose intent is what kind of message it is"),
    },
    agent_sends={
        F.PERCENT: OUR_EVENT,
        F.MESSAGE: OUR_EVENT,
        F.STEP: OUR_EVENT,
        F.OUTPUT: OUR_EVENT,
        F.THINKING: OUR_EVENT,
        F.TOOL_USE: OUR_EVENT,
        F.TOOL_RESULT: OUR_EVENT,
        F.FILE: near("kept over HTTP first, then named in an event of ours"),
        F.QUESTION: near("in an event of ours; not where only the two agents can read it"),
        F.RESULT: near(
            "in a message of a megabyte at most; what is no object, as a field of one, which the message names"
        ),
        F.TEXT: near("as `output` in the payload"),
        F.EXIT_CODE: near("among the details of an error"),
        F.USAGE: near("in a field of ours beside the payload"),
    },
    caller_receives={
        F.PERCENT: OUR_EVENT,
        F.MESSAGE: SHORT_EVENT,
        F.STEP: OUR_EVENT,
        F.OUTPUT: SHORT_EVENT,
        F.THINKING: SHORT_EVENT,
        F.TOOL_USE: SHORT_EVENT,
        F.TOOL_RESULT: SHORT_EVENT,
        F.FILE: near("as a reference in an event of ours, fetched over HTTP"),
        F.QUESTION: near("as the message of an event of ours"),
        F.RESULT: near("in a message of a megabyte at most; a longer one reaches the caller as an error, and is kept"),
        F.TEXT: near("as `output` in the payload, where there is no structured result"),
        F.EXIT_CODE: near("among the details of an error"),
        F.USAGE: near("in a field of ours beside the payload"),
    },
    cut_above=FAULTS,
)
