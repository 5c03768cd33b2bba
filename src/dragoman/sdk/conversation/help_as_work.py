"""Help as work: where a protocol has no help, the hub asks for it as a task of that topic.

{"content": the question, "help": {"help_type", "urgency", "context", "task", "escalations"?}}   a HelpRequest
text, Help(…)                               {"content", "resources"?}
Escalate, Help(response_type="ESCALATION")  the same, with "response_type": the next is asked, with these words
Unable                                      the task fails: the next is asked
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.peers import Escalate, Help, HelpRequest, Unable, as_help, escalations_in
from dragoman.sdk.work.signature import Handler
from dragoman.sdk.work.task import Task


def as_work(helpers: Mapping[str, Callable[..., Any]], known: Iterable[str]) -> dict[str, Handler]:
    """The handlers of help as handlers of work, by their topics; what is done under that name already stays."""
    made: dict[str, Handler] = {}
    for help_type, function in helpers.items():
        topic = help_type.lower()
        if topic not in known:
            made[topic] = Handler(topic, _worker(help_type, function), timeout=None)
    return made


def _worker(help_type: str, function: Callable[..., Any]) -> Callable[..., Any]:
    async def give(task: Task, content: str = "", help: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
        said = help or {}
        request = HelpRequest(
            id=task.id,
            requester=task._running.correlation.sender,
            task_id=str(said.get("task") or task.id),
            help_type=help_type,
            description=content,
            context=said.get("context") or {"current_state": "", "attempted_solutions": []},
            urgency=str(said.get("urgency") or "medium"),
            escalations=escalations_in(said.get("escalations")),
        )
        try:
            return _result([given async for given in _each(function, request)])
        except Escalate as escalate:
            return _result([as_help(escalate)])
        except Unable as no:
            raise task.reject(str(no) or "unable to help") from None

    give.__doc__ = inspect.getdoc(function) or f"Help: {help_type.lower().replace('_', ' ')}."
    return give


async def _each(function: Callable[..., Any], request: HelpRequest) -> AsyncIterator[Any]:
    if inspect.isasyncgenfunction(function):
        async for given in function(request):
            yield given
    elif inspect.iscoroutinefunction(function):
        yield await function(request)
    else:
        given = await asyncio.to_thread(function, request)
        yield await given if inspect.isawaitable(given) else given


def _result(given: list[Any]) -> dict[str, Any]:
    helps: list[Help] = []
    for one in given:
        if one is None:
            raise Unable("unable to help")
        if not isinstance(one, str | Help):
            raise Misconfigured(f"a help handler returns text or a Help, not {type(one).__name__}")
        helps.append(one if isinstance(one, Help) else Help(one))
    if any(not one.helped for one in helps):
        raise Unable(next(one.content for one in helps if not one.helped))
    words = "\n\n".join(one.content for one in helps)
    resources = [resource for one in helps for resource in one.resources]
    told: dict[str, Any] = {"content": words}
    if resources:
        told["resources"] = resources
    if helps and helps[-1].response_type == "ESCALATION":
        told["response_type"] = "ESCALATION"
    return told
