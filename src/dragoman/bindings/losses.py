"""What cannot be carried between two protocols, written down once (bridging B2).

There are no pairs in this table, as there are none in the code (B1): each protocol says what it can put into words and
what it can hear, and the loss of a pair is what one side says and the other cannot hear. A test sends every feature
through every pair of protocols and compares what arrives with this table.

    towards the agent    the caller says it, the agent hears it
    towards the caller   the agent says it, the caller hears it

What one agent asks of another (help, to take a task over, a direct message) goes towards the agent, too: the caller is
then whoever asks.

A cell is `EXACT`, or `near(how)` where the meaning arrives in other words, or `lost(why)`. What is longer than a
message of the hearer holds is cut, and says so: `Voice.cuts` has from how many bytes on. The raw original of every
message is kept with the task, so what is lost on the way is not lost to a person. The hub's own API hears everything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from dragoman.messages.brevity import LONGEST_TEXT
from dragoman.messages.faults import LONGEST as LONGEST_REASON


class Carriage(enum.StrEnum):
    EXACT = "exact"
    NEAR = "near"
    LOST = "lost"


class Cell(msgspec.Struct, frozen=True):
    """`cut_above`: more bytes than these do not arrive."""

    how: Carriage
    words: str = ""
    cut_above: int | None = None


EXACT = Cell(Carriage.EXACT)


def near(words: str) -> Cell:
    return Cell(Carriage.NEAR, words)


def lost(words: str) -> Cell:
    return Cell(Carriage.LOST, words)


class Feature(enum.StrEnum):
    """What a task and its story are made of."""

    # towards the agent
    WORK_TYPE = "work type"
    INPUT = "structured input"
    PRIORITY = "priority"
    DEADLINE = "time limit"
    DEPENDENCIES = "dependencies"
    DESCRIPTION = "name and description"
    THREAD = "conversation thread"
    ATTACHMENT = "attached file"
    BUDGET = "budget"
    LIMITS = "limits of memory and quality"
    CONTEXT = "what is known around it"
    CANCEL = "cancel"
    PAUSE = "pause and resume"
    ANSWER = "a person's answer"
    HELP = "request for help"
    HANDOVER = "task handed over, with its story"
    DIRECT_MESSAGE = "message that is no task"
    # towards the caller
    PERCENT = "progress in percent"
    MESSAGE = "progress in words"
    STEP = "step"
    OUTPUT = "output pieces"
    THINKING = "thinking"
    TOOL_USE = "tool use"
    TOOL_RESULT = "tool result"
    FILE = "produced file"
    QUESTION = "question to a person"
    RESULT = "structured result"
    TEXT = "result text"
    FAILURE = "failure with its reason"
    EXIT_CODE = "exit code"
    USAGE = "resources used"


F = Feature
TO_AGENT = (
    F.WORK_TYPE, F.INPUT, F.PRIORITY, F.DEADLINE, F.DEPENDENCIES, F.DESCRIPTION, F.THREAD, F.ATTACHMENT, F.BUDGET,
    F.LIMITS, F.CONTEXT, F.CANCEL, F.PAUSE, F.ANSWER, F.HELP, F.HANDOVER, F.DIRECT_MESSAGE,
)  # fmt: skip
TO_CALLER = (
    F.PERCENT, F.MESSAGE, F.STEP, F.OUTPUT, F.THINKING, F.TOOL_USE, F.TOOL_RESULT, F.FILE, F.QUESTION, F.RESULT, F.TEXT,
    F.FAILURE, F.EXIT_CODE, F.USAGE,
)  # fmt: skip

HUB_KEEPS_IT = "the hub obeys it; an agent of this protocol does not learn of it"
PEOPLE_MAY = "the protocol has no message for it; people do it through the management API"
NOT_ASKED = {
    F.HELP: lost("the protocol has no message for it; agents give each other tasks"),
    F.HANDOVER: lost("the protocol has no message for it; a task stays with its agent, or fails"),
    F.DIRECT_MESSAGE: lost("the protocol has no message for it"),
}
"""What agents of most protocols cannot ask of others."""
NOT_SAID_AROUND = {
    F.LIMITS: lost("the protocol has no field for it"),
    F.CONTEXT: lost("the protocol has no field for it; what matters is in the input"),
}
"""What callers of most protocols say nothing of."""
NO_DIRECT_MESSAGES = lost("an agent of this protocol gets tasks only; the sender gets a refusal")


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """What one protocol can say and hear. A feature that is not named is `EXACT`."""

    caller_says: Mapping[Feature, Cell] = {}
    agent_hears: Mapping[Feature, Cell] = {}
    agent_says: Mapping[Feature, Cell] = {}
    caller_hears: Mapping[Feature, Cell] = {}
    cuts: Mapping[Feature, int] = {}
    """Of what a caller hears: how many bytes of it, before it is cut."""


REASONS = {F.FAILURE: LONGEST_REASON}
ASIDES = dict.fromkeys((F.MESSAGE, F.STEP, F.THINKING, F.TOOL_USE, F.TOOL_RESULT, F.QUESTION), LONGEST_TEXT)
"""What is said on the way beside output and files: a message holds it with room to spare."""
IN_ITS_BYTES = frozenset({"agentmsg", "chiffon"})
"""Within these, what an agent says reaches a caller as it came, however long."""

OUR_EVENT = near("in an event of ours")
SHORT_EVENT = near("in an event of ours; what is above a megabyte is kept, and not told")
SHORT = near("in a message of a megabyte at most")

VOICES: Mapping[str, Voice] = {
    "a2acp": Voice(
        caller_says={
            F.PRIORITY: lost("a2acp has no field for it"),
            F.INPUT: SHORT,
            F.DEADLINE: lost("a caller has no field for it; the contract's time for an answer counts instead"),
            F.DEPENDENCIES: lost("a2acp has no field for it"),
            F.DESCRIPTION: lost("a2acp names work by its intent only"),
            F.THREAD: lost("a2acp has no conversations"),
            F.ATTACHMENT: lost("a2acp has no message for a file"),
            F.BUDGET: lost(PEOPLE_MAY),
            F.PAUSE: lost(PEOPLE_MAY),
            **NOT_SAID_AROUND,
            **NOT_ASKED,
            F.DIRECT_MESSAGE: near("as an event, under a contract"),
        },
        agent_hears={
            F.LIMITS: near("in a field of ours"),
            F.CONTEXT: near("in a field of ours; not that of personal work"),
            F.PRIORITY: near(HUB_KEEPS_IT),
            F.DEADLINE: near(HUB_KEEPS_IT),
            F.DEPENDENCIES: near(HUB_KEEPS_IT),
            F.BUDGET: near(HUB_KEEPS_IT),
            F.DESCRIPTION: near("in a field of ours"),
            F.THREAD: near("in a field of ours"),
            F.ATTACHMENT: near("as a reference in the payload, fetched over HTTP"),
            F.PAUSE: near("as an event of ours"),
            F.ANSWER: OUR_EVENT,
            F.HELP: near("as a request, whose response is the help"),
            F.HANDOVER: near("as a request, with its story in payload.handover"),
            F.DIRECT_MESSAGE: near("as an event, whose intent is what kind of message it is"),
        },
        agent_says={
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
        caller_hears={
            F.PERCENT: OUR_EVENT,
            F.MESSAGE: SHORT_EVENT,
            F.STEP: OUR_EVENT,
            F.OUTPUT: SHORT_EVENT,
            F.THINKING: SHORT_EVENT,
            F.TOOL_USE: SHORT_EVENT,
            F.TOOL_RESULT: SHORT_EVENT,
            F.FILE: near("as a reference in an event of ours, fetched over HTTP"),
            F.QUESTION: near("as the message of an event of ours"),
            F.RESULT: near("in a message of a megabyte at most; what is more is told as an error, and kept"),
            F.TEXT: near("as `output` in the payload, where there is no structured result"),
            F.EXIT_CODE: near("among the details of an error"),
            F.USAGE: near("in a field of ours beside the payload"),
        },
        cuts=REASONS,
    ),
    "agentmsg": Voice(
        caller_says={
            F.THREAD: near("in the metadata of the task's context"),
            F.ATTACHMENT: lost("agentmsg has no message for a file"),
            F.PAUSE: lost(PEOPLE_MAY),
            F.LIMITS: near("of quality; there is no field for memory"),
        },
        agent_hears={
            F.LIMITS: near("of memory, in a field of ours"),
            F.THREAD: near("in the metadata of the task's context"),
            F.ATTACHMENT: near("as a reference in a field of ours, fetched over HTTP"),
            F.PAUSE: near("as a TASK_UPDATE from the hub"),
            F.ANSWER: near("as a HELP_RESPONSE, or with the task where the question ended the turn"),
            F.DIRECT_MESSAGE: near(
                "in its own bytes; an event of a2acp as a TASK_UPDATE, with the event in a field of ours"
            ),
        },
        agent_says={
            F.STEP: near("in a field of ours"),
            F.THINKING: near("in a field of ours"),
            F.TOOL_USE: near("in a field of ours"),
            F.TOOL_RESULT: near("in a field of ours"),
            F.FILE: near("kept over HTTP first, then named in a field of ours"),
            F.QUESTION: near("as a HELP_REQUEST that nobody but a person can answer"),
            F.TEXT: near("as the result, or beside it in a field of ours"),
            F.EXIT_CODE: near("among the details of an error report"),
        },
        caller_hears={
            F.STEP: near("in a field of ours"),
            F.THINKING: near("in a field of ours"),
            F.TOOL_USE: near("in a field of ours"),
            F.TOOL_RESULT: near("in a field of ours"),
            F.FILE: near("as a reference in a field of ours, fetched over HTTP"),
            F.QUESTION: near("as the message of a TASK_UPDATE"),
            F.TEXT: near("as the result, or beside it in a field of ours"),
            F.EXIT_CODE: near("among the details of an error report"),
        },
        cuts=REASONS | ASIDES | {F.OUTPUT: LONGEST_TEXT, F.TEXT: LONGEST_TEXT},
    ),
    "chiffon": Voice(
        caller_says={
            F.DESCRIPTION: lost("chiffon names work by its type only"),
            F.THREAD: lost("chiffon has no conversations"),
            F.BUDGET: lost(PEOPLE_MAY),
            F.PAUSE: near("over HTTP"),
            **NOT_SAID_AROUND,
            F.LIMITS: near("of memory; there is no field for quality"),
            **NOT_ASKED,
        },
        agent_hears={
            F.LIMITS: near("of quality, in x_custom_fields"),
            F.CONTEXT: near("in x_custom_fields"),
            F.PRIORITY: near(HUB_KEEPS_IT),
            F.BUDGET: near(HUB_KEEPS_IT),
            F.PAUSE: near("as a work_status from the hub"),
            F.HELP: near("as a task, whose result is the help"),
            F.HANDOVER: near("as work, with its story in parameters.handover"),
            F.DIRECT_MESSAGE: NO_DIRECT_MESSAGES,
            F.DEADLINE: near("as the whole seconds that are left, in hints.max_duration_seconds"),
            F.DEPENDENCIES: near(HUB_KEEPS_IT),
            F.DESCRIPTION: near("in x_custom_fields"),
            F.THREAD: near("in x_custom_fields"),
            F.ATTACHMENT: near("as a reference in x_custom_fields, fetched over HTTP"),
            F.CANCEL: near("as an error of code 5900, which the document leaves free"),
            F.ANSWER: near("as a new work_request of the same task (B3)"),
        },
        agent_says={
            F.MESSAGE: near("as the name of a step, or in x_custom_fields"),
            F.THINKING: near("in x_custom_fields"),
            F.TOOL_USE: near("in x_custom_fields"),
            F.TOOL_RESULT: near("in x_custom_fields"),
            F.FILE: near("kept over HTTP first, then named in x_custom_fields"),
            F.QUESTION: near("as a paused status, with the question in x_custom_fields (B3)"),
            F.RESULT: near("in x_custom_fields, beside the text"),
            F.FAILURE: near("of failed work, in the last line of the output, 300 characters of it at most"),
        },
        caller_hears={
            F.MESSAGE: near("as the name of a step, and in x_custom_fields"),
            F.THINKING: near("in x_custom_fields"),
            F.TOOL_USE: near("in x_custom_fields"),
            F.TOOL_RESULT: near("in x_custom_fields"),
            F.FILE: near("as a reference in x_custom_fields, fetched over HTTP"),
            F.QUESTION: near("as a paused status, with its words in x_custom_fields"),
            F.RESULT: near("in x_custom_fields, beside its text"),
            F.USAGE: near("in resources_used; what that has no field for, in x_custom_fields"),
        },
        cuts=REASONS | ASIDES,
    ),
    "coven": Voice(
        caller_says={
            F.WORK_TYPE: near("in an extension field; `chat` without it"),
            F.INPUT: near("in an extension field; the document has text only"),
            F.PRIORITY: near("in an extension field"),
            F.DEADLINE: lost("coven has no field for it"),
            F.DEPENDENCIES: lost("coven has no field for it"),
            F.DESCRIPTION: lost("coven has no field for it"),
            F.BUDGET: lost(PEOPLE_MAY),
            F.PAUSE: lost(PEOPLE_MAY),
            **NOT_SAID_AROUND,
            **NOT_ASKED,
        },
        agent_hears={
            F.LIMITS: lost("coven has no field for it"),
            F.CONTEXT: near("as JSON behind the words; to agents that ask for it, in an extension field"),
            F.BUDGET: near(HUB_KEEPS_IT),
            F.PAUSE: lost("coven has no message for it: the agent works on"),
            F.HELP: near("as a task, whose result is the help"),
            F.HANDOVER: near("as work, with its story as JSON behind the words"),
            F.DIRECT_MESSAGE: NO_DIRECT_MESSAGES,
            F.WORK_TYPE: near("in an extension field, and in the text where it says more than the text itself"),
            F.INPUT: near("as JSON in the text; to agents that ask for it, in an extension field"),
            F.PRIORITY: near(HUB_KEEPS_IT),
            F.DEADLINE: near(HUB_KEEPS_IT),
            F.DEPENDENCIES: near(HUB_KEEPS_IT),
            F.DESCRIPTION: near("as part of the text, where the input has no text of its own"),
            F.CANCEL: near("by an extension, to agents that declare it; the result of others is ignored (B4)"),
            F.ANSWER: near("as the next message of the thread (B3)"),
        },
        agent_says={
            F.PERCENT: near("in an extension field"),
            F.MESSAGE: near("as thinking"),
            F.STEP: near("in an extension field"),
            F.QUESTION: near("the question ends the turn, in an extension field (B3)"),
            F.RESULT: near("in an extension field, beside the text"),
            F.EXIT_CODE: near("among the facts of a failure, in an extension field"),
            F.USAGE: lost("coven has no field for it"),
        },
        caller_hears={
            F.PERCENT: near("in an extension field"),
            F.MESSAGE: near("as thinking"),
            F.STEP: near("in an extension field"),
            F.QUESTION: near("as thinking: the turn goes on when the answer comes"),
            F.RESULT: near("in an extension field, beside its text"),
            F.EXIT_CODE: near("among the facts of a failure, in an extension field"),
            F.USAGE: lost("coven has no field for it"),
        },
        cuts=REASONS,
    ),
    "forge": Voice(
        caller_says={F.BUDGET: lost(PEOPLE_MAY), F.PAUSE: lost(PEOPLE_MAY), **NOT_SAID_AROUND, **NOT_ASKED},
        agent_hears={
            F.LIMITS: near("in a field of ours"),
            F.CONTEXT: near("in a field of ours"),
            F.DEADLINE: near(HUB_KEEPS_IT),
            F.BUDGET: near(HUB_KEEPS_IT),
            F.HELP: near("as a task, whose result is the help"),
            F.HANDOVER: near("as work, with its story in a field of ours"),
            F.DIRECT_MESSAGE: NO_DIRECT_MESSAGES,
            F.THREAD: near("in a field of ours"),
            F.ATTACHMENT: near("as a reference, fetched with request:get-file"),
        },
        agent_says={
            F.FILE: near("in a field of ours, as base64"),
            F.EXIT_CODE: near("among the details of a failure"),
            F.USAGE: lost("forge has no field for it"),
        },
        caller_hears={
            F.FILE: near("as a reference, fetched with request:get-file"),
            F.QUESTION: near("as a progress message"),
            F.EXIT_CODE: near("among the details of a failure"),
            F.USAGE: lost("forge has no field for it"),
        },
        cuts=REASONS | ASIDES,
    ),
}


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one feature between a caller's protocol and an agent's."""

    feature: Feature
    towards: str
    how: Carriage
    why: str
    cut_above: int | None = None


def carried(feature: Feature, caller: str, agent: str) -> Cell:
    """How a feature fares between a caller and an agent."""
    cell = said_and_heard(feature, caller, agent)
    most = VOICES[caller].cuts.get(feature)
    if most is None or cell.how is Carriage.LOST or (caller == agent and caller in IN_ITS_BYTES):
        return cell
    cut = f"what is above {most // 1024} KiB is cut, and says so"
    return Cell(Carriage.NEAR, f"{cell.words}; {cut}" if cell.words else cut, most)


def said_and_heard(feature: Feature, caller: str, agent: str) -> Cell:
    """The same, however long it is."""
    to_agent = feature in TO_AGENT
    speaker, hearer = VOICES[caller if to_agent else agent], VOICES[agent if to_agent else caller]
    said = (speaker.caller_says if to_agent else speaker.agent_says).get(feature, EXACT)
    heard = (hearer.agent_hears if to_agent else hearer.caller_hears).get(feature, EXACT)
    for how in (Carriage.LOST, Carriage.NEAR):
        words = [cell.words for cell in (said, heard) if cell.how is how]
        if words:
            return Cell(how, "; ".join(dict.fromkeys(words)))
    return EXACT


def losses(caller: str, agent: str) -> list[Loss]:
    """What does not arrive as it was said between a caller's protocol and an agent's.

    Within one protocol messages pass in its own words, so nothing that it can say is lost there, unless it is cut.
    """
    found = []
    for feature in Feature:
        cell = carried(feature, caller, agent)
        own_words = caller == agent and cell.how is Carriage.NEAR and cell.cut_above is None
        if cell.how is Carriage.EXACT or own_words:
            continue
        towards = "agent" if feature in TO_AGENT else "caller"
        found.append(Loss(feature=feature, towards=towards, how=cell.how, why=cell.words, cut_above=cell.cut_above))
    return found


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    caller: str
    agent: str
    losses: list[Loss]


def matrix(callers: Iterable[str] = VOICES, agents: Iterable[str] = VOICES) -> list[Pair]:
    """Every pair there is."""
    wanted = list(agents)
    return [Pair(caller=caller, agent=agent, losses=losses(caller, agent)) for caller in callers for agent in wanted]
