"""Every command, every outcome and every kind of delivery crosses the stream between nodes whole."""

from __future__ import annotations

import types
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from dragoman.app.cluster.link.messages import (
    COMMAND_ITEMS,
    OUTCOME_ITEMS,
    REASONS,
    Batch,
    Carried,
    Delivered,
    MomentItem,
    Pipelining,
    RefusalItem,
    answer_from,
    digest_of,
    encode,
    items_from,
    outcome_item,
)
from dragoman.app.cluster.link.mirror import Delta
from dragoman.core.commands import Command, Outcome
from dragoman.core.hub import DECISIONS
from dragoman.core.ids import SessionId
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Delivery, DirectMessage
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind
from dragoman.wire.closing import CloseReason

ANYTHING = {"n\u0000ame": [1, -0.5, 123456789012345678901234567890, None, True, "\u2028 é 🜁"]}
RAW = msgspec.Raw(b'{"kept":  "word for word", "a":1.0}')


def full(kind: inspect.Type, depth: int = 0) -> Any:
    """A value of this type with something in every field that is not the default."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            if depth > 6:
                fields = tuple(field for field in fields if field.required)
            return cls(**{field.name: full(field.type, depth + 1) for field in fields})
        case inspect.UnionType(types=kinds):
            return full(next(one for one in kinds if not isinstance(one, inspect.NoneType)), depth)
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.VarTupleType(item_type=item):
            return (full(item, depth + 1), full(item, depth + 1))
        case inspect.TupleType(item_types=items):
            return tuple(full(item, depth + 1) for item in items)
        case inspect.ListType(item_type=item) | inspect.CollectionType(item_type=item):
            return [full(item, depth + 1)]
        case inspect.FrozenSetType(item_type=item):
            return frozenset({full(item, depth + 1)})
        case inspect.DictType(key_type=key, value_type=value):
            return {full(key, depth + 1): full(value, depth + 1)}
        case inspect.AnyType():
            return ANYTHING
        case inspect.RawType():
            return RAW
        case inspect.BytesType():
            return b"\x00\xff raw"
        case inspect.StrType():
            return "te\u0000xt 🜁"
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 2**63 + 7 if depth > 2 else 1_800_000_000_000_001
        case inspect.FloatType():
            return 0.1
        case inspect.NoneType():
            return None
    raise AssertionError(f"a field has a type that this test does not know: {kind}")


def example(of: type[Any]) -> Any:
    return full(inspect.type_info(of))


def crossed(batch: Batch) -> Batch:
    back = answer_from(encode(batch))
    assert isinstance(back, Batch)
    return back


@pytest.mark.parametrize("command", DECISIONS, ids=lambda command: command.__name__)
def test_every_command_of_the_table_crosses_whole(command: type[Command]) -> None:
    place = Pipelining(SessionId("s"), "task", "message", "stream", begins=True, again=False)
    for sent in (COMMAND_ITEMS[command](7, place, example(command)), COMMAND_ITEMS[command](0, None, example(command))):
        (taken,) = items_from(b"[%b]" % encode(sent))
        assert taken == sent
        assert type(taken.command) is command  # type: ignore[attr-defined]


def test_no_command_and_no_outcome_is_forgotten() -> None:
    assert set(COMMAND_ITEMS) == set(DECISIONS)
    assert set(OUTCOME_ITEMS) == {types.NoneType if kind is None else kind for kind in get_args(Outcome)}


@pytest.mark.parametrize("kind", OUTCOME_ITEMS, ids=lambda kind: kind.__name__)
def test_every_type_of_outcome_crosses_whole(kind: type[Any]) -> None:
    sent = OUTCOME_ITEMS[kind](9, example(kind))
    (taken,) = crossed(Batch(outcomes=[sent])).outcomes
    assert taken == sent


def test_an_outcome_that_is_a_bool_crosses_as_the_number_it_is() -> None:
    (taken,) = crossed(Batch(outcomes=[outcome_item(3, outcome=True)])).outcomes
    assert taken == OUTCOME_ITEMS[int](3, 1)


def test_a_refusal_crosses_with_all_its_facts() -> None:
    fault = Fault(
        kind=Kind.CONFLICT, message="no", field="a.b", retryable=True, facts=ANYTHING, named=Kind.TIMEOUT, reported=True
    )
    (taken,) = crossed(Batch(outcomes=[RefusalItem(3, fault, keep=True)])).outcomes
    assert taken == RefusalItem(3, fault, keep=True)


@pytest.mark.parametrize("content", [Event, Question, DirectMessage, Contract, None])
def test_every_kind_of_delivery_crosses_whole(content: type[Any] | None) -> None:
    whole = Outgoing(example(Delivery), example(Task), None if content is None else example(content))
    alone = msgspec.structs.replace(whole, about_task=None)
    sent = [Delivered(SessionId("s"), Carried.of(one)) for one in (whole, alone)]
    assert [one.message.outgoing for one in crossed(Batch(delivered=sent)).delivered] == [whole, alone]


def test_the_body_of_an_event_crosses_word_for_word() -> None:
    event = example(Event)
    (taken,) = crossed(Batch(delivered=[Delivered(SessionId("s"), Carried(example(Delivery), None, event))])).delivered
    assert bytes(taken.message.outgoing.event.body) == bytes(RAW)
    assert taken.message.outgoing.event.raw == event.raw


def test_a_delta_a_moment_and_the_reasons_to_close_cross_whole() -> None:
    delta, moment = example(Delta), example(MomentItem)
    batch = crossed(Batch(deltas=[delta], moments=[moment], hung_up=[(SessionId("s"), "HUB_STOPS")], touched=["t"]))
    assert (batch.deltas, batch.moments, batch.touched) == ([delta], [moment], ["t"])
    assert [REASONS[reason] for _, reason in batch.hung_up] == [CloseReason.HUB_STOPS]


def test_the_halves_of_a_batch_are_the_batch_and_only_the_last_one_ends_it() -> None:
    outcomes = [OUTCOME_ITEMS[int](number, number) for number in range(5)]
    whole = Batch(outcomes=list(outcomes), touched=["a", "b", "c"], deltas=[Delta(queued=1)])
    first, second = whole.halves()
    assert (first.ends, second.ends) == (False, True)
    first.extend(second)
    assert (first.outcomes, first.touched, first.deltas) == (outcomes, ["a", "b", "c"], [Delta(queued=1)])


def test_other_rules_have_another_digest_and_the_order_of_sets_is_none() -> None:
    rules = Rules()
    same = Rules(retried=frozenset(sorted(rules.retried, reverse=True)))
    assert digest_of(rules) == digest_of(same)
    assert digest_of(rules) != digest_of(Rules(grace=rules.grace + 1))
