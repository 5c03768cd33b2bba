"""A request for help that its helper passed on (agentmsg-D6a): what it said, for the asker and for the next helper.

    the helper                     escalates by                           the asker gets
    -----------------------------  -------------------------------------  --------------------------------------------
    an agent that converses        a help response of that type           that response, word for word
    an agent of another protocol   the result of its task:                a message in the hub's form (`ESCALATED`), put
                                   {"response_type": "ESCALATION",        into words by the binding of the asker
                                   "content", "resources"?}

The question keeps what each of them said (`Question.escalations`): the next agent finds it beside the request, a person
beside the question. `assistance` does the asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

import msgspec

from dragoman.core.commands import HelpVerdict
from dragoman.core.ids import HUB
from dragoman.core.model.deliveries import ESCALATED, DirectMessage, Escalation
from dragoman.core.model.tasks import Question
from dragoman.core.policy.replay import mark_of
from dragoman.messages.brevity import in_short

DIRECT_MESSAGES = UUID("9b7f6c0e-3f7b-5c55-9c6a-64726167eeee")
"""Namespace of the ids of direct messages that tell of an escalation."""

LONGEST = 64 * 1024
"""Bytes of one helper's words, and of its resources, that the next one who is asked is told: the question is a row that
is written again, and must fit into a message with what others said."""

VERDICTS: Mapping[str, HelpVerdict] = {
    "escalation": HelpVerdict.ESCALATED,
    "unable_to_help": HelpVerdict.UNABLE,
}
"""What the `response_type` of a task's result says, where the task was a request for help. Any other is an answer."""


def spelled(word: str) -> str:
    """A topic or a type in the one spelling in which they are compared."""
    return word.casefold().replace("-", "_").replace(" ", "_")


def verdict_of(answer: Any) -> HelpVerdict:
    kind = answer.get("response_type") if isinstance(answer, dict) else None
    return VERDICTS.get(spelled(kind), HelpVerdict.ANSWERED) if isinstance(kind, str) else HelpVerdict.ANSWERED


def content_of(answer: Any) -> str:
    content = answer.get("content") if isinstance(answer, dict) else answer
    if isinstance(content, str):
        return content
    return "" if content is None else msgspec.json.encode(content).decode()


def escalation_of(question: Question, answer: Any) -> Escalation:
    """What the agent that is asked now said when it passed the question on."""
    assert question.asked_of is not None
    given = answer.get("resources") if isinstance(answer, dict) else None
    resources: list[Any] = []
    for resource in given if isinstance(given, list | tuple) else ():
        if len(msgspec.json.encode([*resources, resource])) > LONGEST:
            break
        resources.append(resource)
    words = in_short(content_of(answer), LONGEST)
    return Escalation(agent=question.asked_of, content=words, resources=tuple(resources))


def noted(question: Question, answer: Any) -> Question:
    """The question with what its helper said. The asker had named that one: who is asked next is the hub's choice."""
    said = (*question.escalations, escalation_of(question, answer))
    details = {**question.details, "named": None, "escalations": msgspec.to_builtins(said)}
    return msgspec.structs.replace(question, details=details)


def direct_message_about(question: Question, answer: Any) -> DirectMessage:
    """What an agent without help responses said, to the asker. The same escalation again is the same direct message."""
    escalation = escalation_of(question, answer)
    told = {**msgspec.to_builtins(escalation), "request_id": question.request_id}
    body = msgspec.json.encode(told)
    return DirectMessage(
        sender=escalation.agent,
        message_id=str(uuid5(DIRECT_MESSAGES, f"{question.id}/{len(question.asked_before)}")),
        kind=ESCALATED,
        digest=mark_of(ESCALATED, body.decode()),
        body=msgspec.Raw(body),
        protocol=HUB,
        personal=question.personal,
    )
