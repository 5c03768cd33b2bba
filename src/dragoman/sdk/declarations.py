"""What an agent does, declared by functions: its work, what runs around it, and how it meets other agents.

`sdk.agent` has its life: serving, stopping, and messages of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, overload

from dragoman.sdk.conversation.peer_handlers import HELP_TYPES, PeerHandlers
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.peers import HelpKind
from dragoman.sdk.work import signature
from dragoman.sdk.work.signature import Handler, RetryPolicy, policy_of
from dragoman.sdk.work.task import Middleware

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)
H = TypeVar("H", bound=Callable[[], object])


class Declarations:
    """What an agent under this id was declared to do."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []
        self._on_start: list[Callable[[], object]] = []
        self._on_stop: list[Callable[[], object]] = []
        self._peer_handlers = PeerHandlers()

    def __repr__(self) -> str:
        return f"Agent({self.id!r}, does {', '.join(self._handlers) or 'nothing yet'})"

    def capabilities(self) -> list[dict[str, Any]]:
        """What the agent does, each with the JSON Schema of its input and output."""
        return [handler.capability() for handler in self._handlers.values()]

    # --- work ---

    def on(
        self, work_type: str, *, timeout: float | None = None, retry: RetryPolicy | int | None = None
    ) -> Callable[[F], F]:
        """Declare the function that does this work. It may be a coroutine function or a plain one (run in a thread).

        `timeout` is how many seconds one run may take; time spent waiting for a person does not count. `retry` says how
        often a run that failed is followed by another (`RetryPolicy`, or a number of runs).
        """
        return self._declare("on", work_type, timeout, retry, {})

    def task(
        self,
        intent: str,
        *,
        pii: bool = False,
        requires: Sequence[str] = (),
        timeout: float = 30.0,
        version: str = "1.0.0",
        retry: RetryPolicy | int | None = None,
    ) -> Callable[[F], F]:
        """Declare the function that serves an intent, with the terms of a2acp's contracts: what it `requires` of who
        asks, and whether it deals with personal data (`pii`), which is then always encrypted.

        The type hints become the schemas to which the hub holds both sides. Over other protocols it is as `on`.
        """
        terms = {"pii": pii, "requires": several("requires", requires), "version": version}
        return self._declare("task", intent, timeout, retry, terms)

    def _declare(
        self,
        decorator: str,
        work_type: Any,  # these two are checked here, whatever was given
        timeout: Any,
        retry: RetryPolicy | int | None,
        terms: Mapping[str, Any],
    ) -> Callable[[F], F]:
        if not isinstance(work_type, str) or not work_type:
            raise Misconfigured(f'say which work it does: @agent.{decorator}("run_playbook"), not {work_type!r}')
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise Misconfigured(f"the timeout of {work_type} is {timeout!r}: give a number of seconds above 0, or None")
        policy = policy_of(retry)

        def declare(function: F) -> F:
            if work_type in self._handlers:
                raise Misconfigured(f"{self.id} already does {work_type}")
            handler = Handler(work_type, function, timeout=timeout, terms=terms, retry=policy)
            self._handlers[work_type] = handler
            signature.declare(self.id, handler)
            return function

        return declare

    def middleware(self, function: M) -> M:
        """Declare a coroutine function around every run of every handler: it gets the task and `call_next`, and returns
        what `call_next(task)` returns, or something else. The first one declared is the outermost.

            @agent.middleware
            async def timed(task: Task, call_next: CallNext) -> Any:
                with timer(task.type):
                    return await call_next(task)
        """
        given: Any = function
        if not inspect.iscoroutinefunction(given):
            raise Misconfigured(f"{function!r} is no middleware: declare it as async def middleware(task, call_next)")
        self._middleware.append(function)
        return function

    # --- start and stop ---

    def on_start(self, function: H) -> H:
        """Declare a function, plain or a coroutine function, that runs when the agent begins to serve, before it
        connects. If it raises, the agent does not serve."""
        self._on_start.append(function)
        return function

    def on_stop(self, function: H) -> H:
        """Declare a function that runs when the agent stops serving, after running work ended. Those declared last run
        first."""
        self._on_stop.append(function)
        return function

    @asynccontextmanager
    async def _hooks(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for hook in self._on_start:
                await _run(hook)
            for hook in self._on_stop:
                stack.push_async_callback(_run, hook)
            yield

    # --- other agents ---

    def on_handshake(self, function: F) -> F:
        """Declare the function that decides with whom to work: it gets a `HandshakeRequest` and returns True or False,
        or `Reject("why")`. Without one, the agent agrees with every one that the hub lets through."""
        if self._peer_handlers.handshake is not None:
            raise Misconfigured(f"{self.id} already decides on handshakes")
        self._peer_handlers.handshake = function
        return function

    @overload
    def on_help(self, function: F, /) -> F: ...

    @overload
    def on_help(self, /, *help_types: HelpKind) -> Callable[[F], F]: ...

    def on_help(self, /, *declared: Any) -> Any:
        """Declare the function that helps other agents: with everything (`@agent.on_help`), or with some
        (`@agent.on_help("CODE_REVIEW")`).

        It gets a `HelpRequest` and returns text or a `Help`, or raises `Unable` or `Escalate`; an asynchronous
        generator may give several answers, all but the last with `follow_up_required`. Over a protocol without
        help the hub asks for it as a task, and several answers are joined.
        """

        def declare(function: F, help_types: Sequence[str]) -> F:
            for help_type in help_types:
                if help_type not in HELP_TYPES:
                    raise Misconfigured(f"there is no help called {help_type}; there are {', '.join(HELP_TYPES)}")
                if help_type in self._peer_handlers.help:
                    raise Misconfigured(f"{self.id} already helps with {help_type}")
                self._peer_handlers.help[help_type] = function
            return function

        if len(declared) == 1 and callable(declared[0]):
            return declare(declared[0], HELP_TYPES)
        return lambda function: declare(function, declared or HELP_TYPES)

    def on_handoff(self, function: F) -> F:
        """Declare the function that decides whether to take over a task: it gets a `HandoffRequest` and returns True or
        False, `Accept(…)` or `Reject("why")`. Without one, the agent accepts what it does and has room for."""
        if self._peer_handlers.handoff is not None:
            raise Misconfigured(f"{self.id} already decides on handoffs")
        self._peer_handlers.handoff = function
        return function

    def on_message(self, type: str | None = None) -> Callable[[F], F]:
        """Declare the function that gets what other agents send this one directly, as a `DirectMessage`: of one type,
        or of all types that no other function gets."""

        def declare(function: F) -> F:
            if type in self._peer_handlers.direct_messages:
                raise Misconfigured(f"{self.id} already hears {type or 'every message'}")
            self._peer_handlers.direct_messages[type] = function
            return function

        return declare


async def _run(hook: Callable[[], object]) -> None:
    done = hook()
    if inspect.isawaitable(done):
        await done


def several(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise Misconfigured(f"{what} is a list of names, not one: {what}=[{names!r}]")
    return tuple(names)
