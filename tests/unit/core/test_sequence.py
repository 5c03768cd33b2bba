"""The order of the lanes in a sequence: the page, the terminal and the standalone SVG draw them as they come."""

from __future__ import annotations

import pytest

from dragoman.core.queries.sequence import Participant, ParticipantKind, lanes


def of(kind: ParticipantKind, *ids: str) -> list[Participant]:
    return [Participant(id=id, kind=kind, protocol=None) for id in ids]


@pytest.mark.parametrize(
    ("callers", "agents", "people", "order"),
    [
        ("", "", "", "hub"),
        ("c", "a", "", "c hub a"),
        ("c", "a b", "p", "c hub a b p"),
        ("c", "a b d", "p", "c d hub a b p"),
        ("c", "a b d e f", "p", "c f d hub a b e p"),
        ("c e", "a b d", "", "c e hub a b d"),
    ],
)
def test_the_hub_stands_in_the_middle_and_an_agent_keeps_its_side_when_more_come(
    callers: str, agents: str, people: str, order: str
) -> None:
    drawn = lanes(
        of(ParticipantKind.CALLER, *callers.split()),
        of(ParticipantKind.AGENT, *agents.split()),
        of(ParticipantKind.PERSON, *people.split()),
    )
    assert [one.id for one in drawn] == order.split()
