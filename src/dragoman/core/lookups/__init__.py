"""Lookups: a closed list of what a decision may ask the store for, each defined once, in Python.

A lookup says which rows it wants (`matches`), in which order (`order`) and how many at most. The memory store tries
every row; SQL stores translate each lookup into a statement with an index behind it, and the shared suite compares
their rows with `matches`. `core.work` uses the same definition to lay the changes of the running unit of work over the
rows of the store. Lookups are values: they are the keys of what was loaded.

    tasks.py         tasks, their events, questions
    deliveries.py    deliveries, dead letters, messages seen before, contracts, shared state
"""

from __future__ import annotations

from dragoman.core.lookups.base import EVERYTHING, PAGE, Lookup, Row
from dragoman.core.lookups.deliveries import (
    FIRST,
    Agreed,
    Bound,
    ContractById,
    DeadLetterById,
    DeadLettersOf,
    DeliveryById,
    EntityById,
    Inbox,
    Lane,
    LaneEnd,
    LeasedTo,
    SeenMessageById,
    Spent,
    Terms,
    Unacknowledged,
    Underway,
)
from dragoman.core.lookups.tasks import (
    AllChildren,
    AskedBy,
    Children,
    Claims,
    Dependents,
    EventOf,
    EventsOf,
    Finished,
    Loose,
    OpenQuestions,
    PutTo,
    QuestionById,
    QuestionsOf,
    Ready,
    Relying,
    TaskById,
    Under,
)

__all__ = [
    "EVERYTHING",
    "FIRST",
    "PAGE",
    "Agreed",
    "AllChildren",
    "AskedBy",
    "Bound",
    "Children",
    "Claims",
    "ContractById",
    "DeadLetterById",
    "DeadLettersOf",
    "DeliveryById",
    "Dependents",
    "EntityById",
    "EventOf",
    "EventsOf",
    "Finished",
    "Inbox",
    "Lane",
    "LaneEnd",
    "LeasedTo",
    "Lookup",
    "Loose",
    "OpenQuestions",
    "PutTo",
    "QuestionById",
    "QuestionsOf",
    "Ready",
    "Relying",
    "Row",
    "SeenMessageById",
    "Spent",
    "TaskById",
    "Terms",
    "Unacknowledged",
    "Under",
    "Underway",
]
