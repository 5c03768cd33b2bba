"""What coven can carry: one column of the table in `messages/features.py`."""

from __future__ import annotations

from dragoman.messages.features import (
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
    protocol="coven",
    caller_sends={
        F.WORK_TYPE: near("in an extension field; `chat` without it"),
        F.INPUT: near("in an extension field; the document has text only"),
        F.PRIORITY: near("in an extension field"),
        F.DEADLINE: lost("coven has no field for it"),
        F.DEPENDENCIES: lost("coven has no field for it"),
        F.DESCRIPTION: lost("coven has no field for it"),
        F.BUDGET: THROUGH_THE_API,
        F.PAUSE: THROUGH_THE_API,
        **NO_LIMITS_OR_CONTEXT,
        **NOTHING_BETWEEN_AGENTS,
    },
    agent_receives={
        F.LIMITS: lost("coven has no field for it"),
        F.CONTEXT: near("as JSON behind the words; to agents that ask for it, in an extension field"),
        F.BUDGET: HUB_OBEYS,
        F.PAUSE: lost("coven has no message for it: the agent works on"),
        F.HELP: near("as a task, whose result is the help"),
        F.HANDOVER: near("as work, with its story as JSON behind the words"),
        F.DIRECT_MESSAGE: NO_DIRECT_MESSAGES,
        F.WORK_TYPE: near("in an extension field, and in the text where it says more than the text itself"),
        F.INPUT: near("as JSON in the text; to agents that ask for it, in an extension field"),
        F.PRIORITY: HUB_OBEYS,
        F.DEADLINE: HUB_OBEYS,
        F.DEPENDENCIES: HUB_OBEYS,
        F.DESCRIPTION: near("as part of the text, where the input has no text of its own"),
        F.CANCEL: near("by an extension, to agents that declare it; the result of others is ignored (B4)"),
        F.ANSWER: near("as the next message of the thread (B3)"),
    },
    agent_sends={
        F.PERCENT: near("in an extension field"),
        F.MESSAGE: near("as thinking"),
        F.STEP: near("in an extension field"),
        F.QUESTION: near("the question ends the turn, in an extension field (B3)"),
        F.RESULT: near("in an extension field, beside the text"),
        F.EXIT_CODE: near("among the facts of a failure, in an extension field"),
        F.USAGE: lost("coven has no field for it"),
    },
    caller_receives={
        F.PERCENT: near("in an extension field"),
        F.MESSAGE: near("as thinking"),
        F.STEP: near("in an extension field"),
        F.QUESTION: near("as thinking: the turn goes on when the answer comes"),
        F.RESULT: near("in an extension field, beside its text"),
        F.EXIT_CODE: near("among the facts of a failure, in an extension field"),
        F.USAGE: lost("coven has no field for it"),
    },
    cut_above=FAULTS,
)
