"""What forge can carry: one column of the table in `messages/features.py`."""

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
    protocol="forge",
    caller_sends={
        F.BUDGET: THROUGH_THE_API,
        F.PAUSE: THROUGH_THE_API,
        **NO_LIMITS_OR_CONTEXT,
        **NOTHING_BETWEEN_AGENTS,
    },
    agent_receives={
        F.LIMITS: near("in a field of ours"),
        F.CONTEXT: near("in a field of ours"),
        F.DEADLINE: HUB_OBEYS,
        F.BUDGET: HUB_OBEYS,
        F.HELP: near("as a task, whose result is the help"),
        F.HANDOVER: near("as work, with its story in a field of ours"),
        F.DIRECT_MESSAGE: NO_DIRECT_MESSAGES,
        F.THREAD: near("in a field of ours"),
        F.ATTACHMENT: near("as a reference, fetched with request:get-file"),
    },
    agent_sends={
        F.FILE: near("in a field of ours, as base64"),
        F.EXIT_CODE: near("among the details of a failure"),
        F.USAGE: lost("forge has no field for it"),
    },
    caller_receives={
        F.FILE: near("as a reference, fetched with request:get-file"),
        F.QUESTION: near("as a progress message"),
        F.EXIT_CODE: near("among the details of a failure"),
        F.USAGE: lost("forge has no field for it"),
    },
    cut_above=FAULTS | BESIDE_OUTPUT,
)
