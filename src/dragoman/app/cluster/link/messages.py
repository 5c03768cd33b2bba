"""What nodes and the leader say to each other on their stream, and its JSON.

A node sends lists of *items*, which the leader takes in order. The leader sends *batches*: what one commit means for
the node. Each command of the hub's table (`core.hub.DECISIONS`) is an item with its name as its tag, and each type of
outcome likewise, so neither list can miss one. Both ends run the same version of this module: the handshake compares
`VERSION`.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Union, cast, get_args

import msgspec

from dragoman.api.live import Moment
from dragoman.app.cluster.link.mirror import Delta
from dragoman.app.cluster.link.shape import shape_of
from dragoman.core.commands import Command, Outcome
from dragoman.core.hub import DECISIONS
from dragoman.core.ids import AgentId, Instant, QuestionId, SessionId
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Delivery, DirectMessage
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.series import Bucket
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault
from dragoman.wire.closing import CloseReason

VERSION = 2
"""Grows when a message means something else than before. A change of its fields, or of those of a command or a row, is
seen without it (`shape`)."""


class LinkRefused(Exception):
    """The leader does not take this node, or the node not this leader: the sentence says why."""


def digest_of(rules: Rules) -> str:
    """Nodes of a realm decide by the same rules: what one refuses early, the other would refuse, too."""
    return hashlib.sha256(msgspec.json.encode(rules, order="deterministic")).hexdigest()


# -- from a node to the leader -----------------------------------------------------------------------------------------


B = TypeVar("B", bound=msgspec.Struct)


def _tagged(base: type[B], name: str, field: str, kind: type[Any]) -> type[B]:
    """The struct with this type in its field, and the type's name as its tag."""
    made = msgspec.defstruct(
        name, [(field, kind)], bases=(base,), tag=kind.__name__, frozen=True, array_like=True, gc=False
    )
    return cast("type[B]", made)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of a node."""

    version: int
    node: str
    realm: str
    epoch: int
    rules: str
    shape: str = ""
    """`shape()` of the node. Version 1 did not say it."""


class Pipelining(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of a command among those that its session sends without waiting (`core.pipelining`). The leader keeps
    the pipeline, since it decides. `again`: the command belongs to the same message as the item before."""

    session: SessionId
    task: str
    id: str
    stream: str | None
    begins: bool
    again: bool


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node sends."""


class CommandItem(Item, frozen=True, array_like=True, gc=False):
    """A command. `number` is the node's own, for the outcome; 0 for one that no caller waits for
    (`Intake.enqueue_and_forget`)."""

    number: int
    pipelining: Pipelining | None
    command: Command


COMMAND_ITEMS: Mapping[type[Command], type[CommandItem]] = {
    command: _tagged(CommandItem, f"{command.__name__}Item", "command", command) for command in DECISIONS
}


class Attach(Item, frozen=True, array_like=True, gc=False, tag="attach"):
    """The node holds this session: its outgoing messages go there."""

    session: SessionId


class Detach(Item, frozen=True, array_like=True, gc=False, tag="detach"):
    session: SessionId


class RefusedHere(Item, frozen=True, array_like=True, gc=False, tag="refused_here"):
    """The node refused a pipelined message for now: what comes behind it must not overtake it."""

    pipelining: Pipelining


class Watch(Item, frozen=True, array_like=True, gc=False, tag="watch"):
    """Tell the node of each commit about this task or question; and once now, for what was committed before."""

    about: str


class Unwatch(Item, frozen=True, array_like=True, gc=False, tag="unwatch"):
    about: str


class WatchLive(Item, frozen=True, array_like=True, gc=False, tag="live"):
    """Whether the node wants the moments of the event stream. Answered under the number, when they flow."""

    number: int
    on: bool


class AskRecent(Item, frozen=True, array_like=True, gc=False, tag="recent"):
    """The buckets of the plots that the store does not have yet."""

    number: int


class Subscribed(Item, frozen=True, array_like=True, gc=False, tag="subscribed"):
    """So many connections of the node read the topics of this pattern now."""

    pattern: str
    readers: int


class Published(Item, frozen=True, array_like=True, gc=False, tag="published"):
    """An agent published at the node: the leader carries it to the other nodes."""

    topic: str
    publisher: str
    data: Any


class NodeStops(Item, frozen=True, array_like=True, gc=False, tag="node_stops"):
    """The node stops in order: its stream will end, and closing its links is no failure of the agents."""


_OTHER_ITEMS = (Attach, Detach, RefusedHere, Watch, Unwatch, WatchLive, AskRecent, NodeStops, Subscribed, Published)

if TYPE_CHECKING:
    AnyItem: TypeAlias = Item
else:
    AnyItem = Union[(*COMMAND_ITEMS.values(), *_OTHER_ITEMS)]


# -- from the leader to a node -----------------------------------------------------------------------------------------


class OutcomeItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of the command of this number."""

    number: int
    outcome: Any


class RefusalItem(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="refused"):
    number: int
    fault: Fault
    keep: bool


class RecentItem(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="recent"):
    number: int
    buckets: list[Bucket]


def _kinds() -> tuple[type[Any], ...]:
    return tuple(types.NoneType if kind is None else kind for kind in get_args(Outcome))


OUTCOME_ITEMS: Mapping[type[Any], type[OutcomeItem]] = {
    kind: _tagged(OutcomeItem, f"{kind.__name__}Outcome", "outcome", kind) for kind in _kinds()
}


def outcome_item(number: int, outcome: Any) -> OutcomeItem:
    """A bool is an int here, as it is to the type checker."""
    return (
        OUTCOME_ITEMS[type(outcome)](number, outcome) if type(outcome) is not bool else outcome_item(number, +outcome)
    )


if TYPE_CHECKING:
    AnyOutcome: TypeAlias = OutcomeItem | RefusalItem | RecentItem
else:
    AnyOutcome = Union[(*OUTCOME_ITEMS.values(), RefusalItem, RecentItem)]


class Carried(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outgoing message. At most one of the contents is there."""

    delivery: Delivery
    about_task: Task | None
    event: Event | None = None
    question: Question | None = None
    direct_message: DirectMessage | None = None
    contract: Contract | None = None

    @classmethod
    def of(cls, outgoing: Outgoing) -> Carried:
        content = outgoing.content
        return cls(
            outgoing.delivery,
            outgoing.about_task,
            content if type(content) is Event else None,
            content if type(content) is Question else None,
            content if type(content) is DirectMessage else None,
            content if type(content) is Contract else None,
        )

    @property
    def outgoing(self) -> Outgoing:
        content = self.event or self.question or self.direct_message or self.contract
        return Outgoing(self.delivery, self.about_task, content)


class Delivered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    session: SessionId
    message: Carried


class MomentItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A moment of the event stream (`api.live`)."""

    number: int
    until: Instant
    events: Sequence[Event]
    tasks: Sequence[Task]
    agents: Sequence[AgentId]
    questions: Sequence[QuestionId]
    dead_letters: bool
    left_out: int

    @classmethod
    def of(cls, moment: Moment) -> MomentItem:
        return cls(
            moment.number,
            moment.until,
            moment.events,
            tuple(moment.tasks.values()),
            tuple(moment.agents),
            tuple(moment.questions),
            moment.dead_letters,
            moment.left_out,
        )

    def numbered(self, number: int) -> Moment:
        return Moment(
            number,
            self.until,
            tuple(self.events),
            {task.id: task for task in self.tasks},
            frozenset(self.agents),
            frozenset(self.questions),
            self.dead_letters,
            self.left_out,
            {},
        )


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The node is taken; the next frames are the snapshot of the mirror."""

    serving_since: Instant


class Rejected(msgspec.Struct, frozen=True, kw_only=True, tag="rejected"):
    why: str


class Batch(msgspec.Struct, kw_only=True, omit_defaults=True, tag="batch"):
    """What a commit means for a node, in the order in which it takes effect. `ends` is False where the commit goes on
    in the next frame: nothing of it takes effect before its end."""

    deltas: list[Delta] = []
    outcomes: list[AnyOutcome] = []
    delivered: list[Delivered] = []
    hung_up: list[tuple[SessionId, str]] = []
    touched: list[str] = []
    moments: list[MomentItem] = []
    subscribed: list[Subscribed] = []
    """How many readers all other nodes have."""
    published: list[Published] = []
    ends: bool = True

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in PARTS)

    def halves(self) -> tuple[Batch, Batch]:
        """Two batches that are this one, when one comes behind the other."""
        first, second = Batch(ends=False), Batch(ends=self.ends)
        for name in PARTS:
            rows = getattr(self, name)
            middle = len(rows) // 2
            setattr(first, name, rows[:middle])
            setattr(second, name, rows[middle:])
        return first, second

    def extend(self, other: Batch) -> None:
        """This and what comes behind it."""
        for name in PARTS:
            getattr(self, name).extend(getattr(other, name))


PARTS = ("deltas", "outcomes", "delivered", "hung_up", "touched", "moments", "subscribed", "published")

REASONS: Mapping[str, CloseReason] = {reason.name: reason for reason in CloseReason}

encode = msgspec.json.Encoder().encode
hello_from = msgspec.json.Decoder(Hello).decode
items_from = msgspec.json.Decoder(list[AnyItem]).decode
answer_from = msgspec.json.Decoder(Welcome | Rejected | Batch).decode


@cache
def shape() -> str:
    """The digest of everything above, and of the rules, whose values the handshake compares as well."""
    frames = (Hello, *COMMAND_ITEMS.values(), *_OTHER_ITEMS, Welcome, Rejected, Batch, Rules, Literal[tuple(REASONS)])
    return shape_of((*frames, *OUTCOME_ITEMS.values(), RefusalItem, RecentItem))
