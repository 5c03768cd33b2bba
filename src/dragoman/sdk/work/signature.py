"""A handler as it is declared: its signature as a contract, and how often it runs again when it failed.

    parameter                             becomes
    ------------------------------------  --------------------------------------------------------
    the first, named or typed as a Task   the task, not part of the input
    name: type                            a required field of the input, checked and converted
    name: type = default                  an optional one
    **rest                                whatever else the input holds; without it, nothing else may

The type hints are read once, when the handler is declared; a hint that no JSON can fit is refused there. They may be
what msgspec knows, and beside that:

    hint                  in JSON                            becomes
    --------------------  ---------------------------------  -----------------------
    a model of pydantic   what its own schema says           the model, validated
    pathlib.Path          text                               the path

Pydantic is not imported: its models have methods that give their schema and make them.

All runs of a `RetryPolicy` are one attempt for the hub: the task stays with this agent, signs of life go out, and the
hub's own retries begin only after the last run failed. They end with the process: after a restart the hub assigns the
task again.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Struct

from dragoman.sdk.errors import BadInput, DragomanError, Misconfigured, NotSupported, Reject, Retry, TaskFailed
from dragoman.sdk.work.task import SyncTask, Task
from dragoman.wire.misfit import misfit

ROOT = "parameters"


FINAL: tuple[type[DragomanError], ...] = (Reject, TaskFailed, BadInput, Misconfigured, NotSupported)
"""Exceptions that are never retried: the agent refuses, reports a failure of its own, or the program is wrong."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """At most `attempts` runs, the first one included. Before the second one the SDK waits `delay` seconds, before each
    further one `factor` times as long, never more than `longest`. `on` are exceptions that are worth another run."""

    attempts: int = 4
    delay: float = 1.0
    factor: float = 2.0
    longest: float = 60.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.delay < 0 or self.factor < 1 or self.longest < 0:
            raise Misconfigured(f"{self!r} is no way to retry: give attempts of at least 1, delays of 0 or more")

    def next_delay(self, run: int, error: BaseException) -> float | None:
        """Seconds to wait after run number `run` ended with this error; None if that was the last one."""
        if run >= self.attempts:
            return None
        delay = min(self.longest, self.delay * self.factor ** (run - 1))
        if isinstance(error, Retry):
            return delay if error.after is None else max(0.0, error.after)
        return delay if isinstance(error, self.on) and not isinstance(error, FINAL) else None


ASKED = RetryPolicy(on=())
"""The policy of a handler without one: it is retried only by `raise Retry(…)`."""


def policy_of(retry: RetryPolicy | int | None) -> RetryPolicy:
    """The policy of `retry=`; a number is that many runs."""
    if retry is None:
        return ASKED
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, bool) or not isinstance(retry, int):
        raise Misconfigured(f"retry is {retry!r}: give a number of runs, or a RetryPolicy")
    return RetryPolicy(attempts=retry)


class Handler:
    """One kind of work an agent does."""

    def __init__(
        self,
        work_type: str,
        function: Callable[..., Any],
        *,
        timeout: float | None,
        depth: int = 2,
        terms: Mapping[str, Any] | None = None,
        retry: RetryPolicy = ASKED,
    ) -> None:
        self.work_type = work_type
        self.function = function
        self.timeout = timeout
        self.retry = retry
        self.terms = terms or {}
        if not callable(function):
            raise Misconfigured(f"{work_type} is to be done by a function, not by {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Misconfigured(
                f"{_name(function)} yields, and a handler returns: say pieces of the answer with task.text(…)"
            )
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is one too
        )
        hints = _hints(function, sys._getframe(depth))
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_task = bool(parameters) and _is_task(parameters[0], hints)
        if self.takes_task:
            if self.is_async and hints.get(parameters[0].name) is SyncTask:
                raise Misconfigured(f"{_name(function)}: a coroutine function gets a Task, whose methods it awaits")
            parameters = parameters[1:]
        self.is_open = False
        fields: list[tuple[str, Any, Any]] = []
        for parameter in parameters:
            hint = hints.get(parameter.name, Any)
            if _mentions_task(hint):
                raise Misconfigured(f"{_name(function)}: the task is the first parameter, as `task: Task`")
            if parameter.kind is parameter.VAR_KEYWORD:
                self.is_open = True
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise Misconfigured(
                    f"{_name(function)}: {parameter} cannot be filled from an input; name each parameter"
                )
            else:
                self._schema(hint, f"the parameter {parameter.name}")
                fields.append((parameter.name, hint, _default(parameter.default)))
        self.names = tuple(name for name, _, _ in fields)
        title = "".join(part.capitalize() for part in re.split(r"\W+|_", work_type)) + "Input"
        self._input_type = msgspec.defstruct(title, fields, kw_only=True, forbid_unknown_fields=not self.is_open)
        self.returns = hints.get("return", Any)
        self.input_schema = self._schema(self._input_type, "its input")
        self.output_schema = {} if self.returns in (Any, None) else self._schema(self.returns, "the return type")

    def bind(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments for this input; raises `BadInput` naming the field that does not fit."""
        try:
            fitted = msgspec.convert(given, self._input_type, dec_hook=made)
        except msgspec.ValidationError as error:
            raise _explain(error) from None
        arguments = {name: getattr(fitted, name) for name in self.names}
        if self.is_open:
            arguments.update((name, value) for name, value in given.items() if name not in arguments)
        return arguments

    def capability(self) -> dict[str, Any]:
        """Its description for the hub, a form or a contract."""
        described: dict[str, Any] = {
            "work_type": self.work_type,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
        }
        about = inspect.getdoc(self.function)
        if about:
            described["description"] = about.partition("\n\n")[0]
        if self.timeout is not None:
            described["timeout_seconds"] = self.timeout
        return {**described, **self.terms}

    def _schema(self, type: Any, what: str) -> dict[str, Any]:
        try:
            return schema(type)
        except (TypeError, NameError) as error:
            why = str(error).splitlines()[-1]
            raise Misconfigured(
                f"{_name(self.function)}: {what} cannot be described as JSON: {why}. Use what has a JSON form: str,"
                " int, dict, list, a dataclass, a TypedDict, a msgspec.Struct, a model of pydantic"
            ) from None


class Declaration(NamedTuple):
    """Where a function was declared as a handler: what a client needs to call it by itself. Declared on several agents
    for the same work, it belongs to none of them alone."""

    agent_id: str | None
    work_type: str
    returns: Any


_DECLARED = "__dragoman_declarations__"


def declare(agent_id: str, handler: Handler) -> None:
    """Mark the function as a handler, so that `client.call(function, …)` finds its work. A bound method or a builtin
    cannot be marked: such a handler is called by the name of its work."""
    made = Declaration(agent_id, handler.work_type, handler.returns)
    try:
        setattr(handler.function, _DECLARED, (*getattr(handler.function, _DECLARED, ()), made))
    except AttributeError:
        pass


def declaration_of(function: Callable[..., Any]) -> Declaration:
    declared: tuple[Declaration, ...] = getattr(function, _DECLARED, ())
    if not declared:
        raise Misconfigured(
            f"{_name(function)} is not declared on an agent in this program: call it by the name of its work, as"
            ' call("run_playbook", {…})'
        )
    if len(works := {one.work_type for one in declared}) > 1:
        named = ", ".join(sorted(works))
        raise Misconfigured(f"{_name(function)} does several kinds of work ({named}): call it by the name of one")
    agents = {one.agent_id for one in declared}
    return declared[0] if len(agents) == 1 else declared[0]._replace(agent_id=None)


def _hints(function: Callable[..., Any], frame: Any) -> dict[str, Any]:
    """The hints, resolved where the handler was declared: a type made inside a function is visible there only."""
    while isinstance(function, functools.partial):
        function = function.func
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, localns=dict(frame.f_locals), include_extras=True)
    except NameError as error:
        raise Misconfigured(f"{_name(function)}: {error}; a handler's types must exist before it is declared") from None


def _is_task(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    hint = hints.get(parameter.name)
    return hint in (Task, SyncTask) or (parameter.name == "task" and hint is None)


def _mentions_task(hint: Any) -> bool:
    return hint in (Task, SyncTask) or any(part in (Task, SyncTask) for part in get_args(hint))


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    return msgspec.field(default_factory=lambda: value)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _explain(error: msgspec.ValidationError) -> BadInput:
    found = misfit(error, ROOT)
    if found.is_missing:
        return BadInput("missing", found.field)
    if found.is_unknown:
        return BadInput("not a parameter of this work", found.field)
    return BadInput(found.what[:1].lower() + found.what[1:], found.field)


DEFS = "#/$defs/"


def schema(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a hint, with its parts in `$defs`. Raises `TypeError` where it has none."""
    parts: dict[str, Any] = {}

    def described(kind: Any) -> dict[str, Any]:
        if _is_model(kind):
            own: dict[str, Any] = kind.model_json_schema(ref_template=f"{DEFS}{kind.__name__}_{{model}}")
            parts.update((f"{kind.__name__}_{name}", part) for name, part in own.pop("$defs", {}).items())
            return own
        if inspect.isclass(kind) and issubclass(kind, PurePath):
            return {"type": "string"}
        raise TypeError(f"{getattr(kind, '__qualname__', kind)} is not supported")

    (top,), found = msgspec.json.schema_components([hint], schema_hook=described, ref_template=f"{DEFS}{{name}}")
    parts = found | parts
    name = top.get("$ref", "").removeprefix(DEFS)
    if name in found:
        top = parts.pop(name)
    return {**top, "$defs": parts} if parts else top


def made(kind: type, value: Any) -> Any:
    """The value of such a type, from what stands in the JSON. Raises `ValueError` where it does not fit."""
    if _is_model(kind):
        return _validated(kind, value)
    if not isinstance(value, str):
        raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
    return kind(value)


def _is_model(kind: Any) -> bool:
    return inspect.isclass(kind) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


def _validated(model: Any, value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        first = errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
