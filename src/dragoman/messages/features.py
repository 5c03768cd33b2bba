"""What a message may carry, and what is lost of it between two protocols (bridging B2).

Each protocol has one column, in `protocols/X/features.py`: what its callers and its agents can send and receive. There
is no table of pairs: a pair loses what one side sends and the other cannot receive. A test sends every feature through
every pair and compares what arrives with the columns.

    towards the agent    the caller sends it, the agent receives it
    towards the caller   the agent sends it, the caller receives it

What one agent asks of another (help, a handoff, a direct message) goes towards the agent: the asking agent is the
caller. The hub keeps the original of every message with the task, so a person still finds what a protocol cannot carry.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from dragoman.messages.brevity import LONGEST_TEXT
from dragoman.messages.faults import LONGEST as LONGEST_FAULT


class Carriage(enum.StrEnum):
    EXACT = "exact"
    NEAR = "near"
    LOST = "lost"


class Cell(msgspec.Struct, frozen=True):
    """How a feature arrives. `note` says how or why not; bytes above `cut_above` are cut."""

    how: Carriage
    note: str = ""
    cut_above: int | None = None


EXACT = Cell(Carriage.EXACT)


def near(note: str) -> Cell:
    """The meaning arrives, in another form."""
    return Cell(Carriage.NEAR, note)


def lost(note: str) -> Cell:
    return Cell(Carriage.LOST, note)


class Feature(enum.StrEnum):
    """The features of the messages about a task."""

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


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What one protocol can carry. A feature that is not named is `EXACT`."""

    protocol: str
    caller_sends: Mapping[Feature, Cell] = {}
    agent_receives: Mapping[Feature, Cell] = {}
    agent_sends: Mapping[Feature, Cell] = {}
    caller_receives: Mapping[Feature, Cell] = {}
    cut_above: Mapping[Feature, int] = {}
    """How many bytes of a feature the hub sends to a caller before it cuts."""
    passes_bytes_on: bool = False
    """An agent's message reaches a caller of the same protocol in the bytes it came in, however long."""


# -- cells that several columns share ----------------------------------------------------------------------------------

HUB_OBEYS = near("the hub obeys it; an agent of this protocol does not learn of it")
THROUGH_THE_API = lost("the protocol has no message for it; people do it through the management API")
NO_DIRECT_MESSAGES = lost("an agent of this protocol gets tasks only; the sender gets a refusal")
NOTHING_BETWEEN_AGENTS = {
    F.HELP: lost("the protocol has no message for it; agents give each other tasks"),
    F.HANDOVER: lost("the protocol has no message for it; a task stays with its agent, or fails"),
    F.DIRECT_MESSAGE: lost("the protocol has no message for it"),
}
NO_LIMITS_OR_CONTEXT = {
    F.LIMITS: lost("the protocol has no field for it"),
    F.CONTEXT: lost("the protocol has no field for it; what matters is in the input"),
}
FAULTS = {F.FAILURE: LONGEST_FAULT}
BESIDE_OUTPUT = dict.fromkeys((F.MESSAGE, F.STEP, F.THINKING, F.TOOL_USE, F.TOOL_RESULT, F.QUESTION), LONGEST_TEXT)


# -- what a pair loses -------------------------------------------------------------------------------------------------


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """How one feature arrives between a caller's protocol and an agent's."""

    feature: Feature
    towards: str
    how: Carriage
    why: str
    cut_above: int | None = None


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    caller: str
    agent: str
    losses: list[Loss]


def carried(feature: Feature, caller: Features, agent: Features) -> Cell:
    """How a feature arrives between a caller and an agent."""
    cell = carried_at_any_length(feature, caller, agent)
    most = caller.cut_above.get(feature)
    if most is None or cell.how is Carriage.LOST or (caller.protocol == agent.protocol and caller.passes_bytes_on):
        return cell
    cut = f"what is above {most // 1024} KiB is cut, and says so"
    return Cell(Carriage.NEAR, f"{cell.note}; {cut}" if cell.note else cut, most)


def carried_at_any_length(feature: Feature, caller: Features, agent: Features) -> Cell:
    """The same, without the cuts for length."""
    if feature in TO_AGENT:
        cells = (caller.caller_sends.get(feature, EXACT), agent.agent_receives.get(feature, EXACT))
    else:
        cells = (agent.agent_sends.get(feature, EXACT), caller.caller_receives.get(feature, EXACT))
    for how in (Carriage.LOST, Carriage.NEAR):
        notes = [cell.note for cell in cells if cell.how is how]
        if notes:
            return Cell(how, "; ".join(dict.fromkeys(notes)))
    return EXACT


def losses(caller: Features, agent: Features) -> list[Loss]:
    """What does not arrive exactly. Within one protocol nothing is lost that it can carry, unless it is cut."""
    found = []
    for feature in Feature:
        cell = carried(feature, caller, agent)
        same_form = caller.protocol == agent.protocol and cell.how is Carriage.NEAR and cell.cut_above is None
        if cell.how is Carriage.EXACT or same_form:
            continue
        towards = "agent" if feature in TO_AGENT else "caller"
        found.append(Loss(feature=feature, towards=towards, how=cell.how, why=cell.note, cut_above=cell.cut_above))
    return found


def matrix(callers: Iterable[Features], agents: Iterable[Features]) -> list[Pair]:
    """The losses of every pair."""
    wanted = list(agents)
    return [
        Pair(caller=caller.protocol, agent=agent.protocol, losses=losses(caller, agent))
        for caller in callers
        for agent in wanted
    ]
