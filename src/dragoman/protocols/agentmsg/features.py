"""What agentmsg can carry: one column of the table in `messages/features.py`."""

from __future__ import annotations

from dragoman.messages.brevity import LONGEST_TEXT
from dragoman.messages.features import BESIDE_OUTPUT, FAULTS, THROUGH_THE_API, Features, lost, near
from dragoman.messages.features import Feature as F

FEATURES = Features(
    protocol="agentmsg",
    caller_sends={
        F.THREAD: near("in the metadata of the task's context"),
        F.ATTACHMENT: lost("agentmsg has no message for a file"),
        F.PAUSE: THROUGH_THE_API,
        F.LIMITS: near("of quality; there is no field for memory"),
    },
    agent_receives={
        F.LIMITS: near("of memory, in a field of ours"),
        F.THREAD: near("in the metadata of the task's context"),
        F.ATTACHMENT: near("as a reference in a field of ours, fetched over HTTP"),
        F.PAUSE: near("as a TASK_UPDATE from the hub"),
        F.ANSWER: near("as a HELP_RESPONSE, or with the task where the question ended the turn"),
        F.DIRECT_MESSAGE: near(
            "in its own bytes; an event of a2acp as a TASK_UPDATE, with the event in a field of ours"
        ),
    },
    agent_sends={
        F.STEP: near("in a field of ours"),
        F.THINKING: near("in a field of ours"),
        F.TOOL_USE: near("in a field of ours"),
        F.TOOL_RESULT: near("in a field of ours"),
        F.FILE: near("kept over HTTP first, then named in a field of ours"),
        F.QUESTION: near("as a HELP_REQUEST that nobody but a person can answer"),
        F.TEXT: near("as the result, or beside it in a field of ours"),
        F.EXIT_CODE: near("among the details of an error report"),
    },
    caller_receives={
        F.STEP: near("in a field of ours"),
        F.THINKING: near("in a field of ours"),
        F.TOOL_USE: near("in a field of ours"),
        F.TOOL_RESULT: near("in a field of ours"),
        F.FILE: near("as a reference in a field of ours, fetched over HTTP"),
        F.QUESTION: near("as the message of a TASK_UPDATE"),
        F.TEXT: near("as the result, or beside it in a field of ours"),
        F.EXIT_CODE: near("among the details of an error report"),
    },
    cut_above=FAULTS | BESIDE_OUTPUT | {F.OUTPUT: LONGEST_TEXT, F.TEXT: LONGEST_TEXT},
    passes_bytes_on=True,
)
