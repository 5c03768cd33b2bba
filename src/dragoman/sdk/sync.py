"""The client for programs without an event loop: the same methods, each returns when it is done.

The asynchronous client lives on a loop of its own in a thread of its own. A trace follows: the context of the caller
goes along with every call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from dragoman.sdk.blocking import Blocking, BlockingPart, each, iterates, waits
from dragoman.sdk.calling.backend import Backend
from dragoman.sdk.client import Client, Input, TaskHandle
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.events import Event
from dragoman.sdk.options import SubmitOptions
from dragoman.sdk.runtime import Runtime

if TYPE_CHECKING:
    from dragoman.sdk.shared_state import SyncState

T = TypeVar("T")

END_SECONDS = 2.0
"""How long tasks that a client leaves on its loop may take to end."""


class SyncClient(Blocking[Client]):
    """`Client` for programs without an event loop: the same methods, and each returns when it is done.

    with SyncClient() as hub:
        report = hub.call("run_playbook", {"playbook": "x.yml"}, agent="deployer")
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        id: str | None = None,
        kind: str | None = None,
        domain: str | None = None,
        version: str | None = None,
        state_dir: str | Path | None = None,
        give_up_after: float | None = None,
        runtime: Runtime | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._asynchronous = Client(
            url,
            token=token,
            id=id,
            kind=kind,
            domain=domain,
            version=version,
            state_dir=state_dir,
            give_up_after=give_up_after,
            runtime=runtime,
            backend=backend,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SyncClient:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dragoman-client", daemon=True)
        self._thread.start()
        try:
            self._wait(self._asynchronous.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._wait(self._asynchronous.__aexit__(*exc))
        finally:
            self._end()

    @overload
    def call(
        self, work: Callable[..., Awaitable[T]], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> T: ...

    @overload
    def call(self, work: Callable[..., T], /, input: Input | None = None, **options: Unpack[SubmitOptions]) -> T: ...

    @overload
    def call(
        self, work: str, /, input: Input | None = None, *, returns: type[T], **options: Unpack[SubmitOptions]
    ) -> T: ...

    @overload
    def call(self, work: str, /, input: Input | None = None, **options: Unpack[SubmitOptions]) -> Any: ...

    @overload
    def call(self, target: str, work: str, /, **input: object) -> Any: ...

    def call(self, /, *what: Any, **rest: Any) -> Any:
        return self._wait(self._asynchronous.call(*what, **rest))

    @overload
    def submit(
        self, work: Callable[..., Awaitable[T]], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> SyncTaskHandle[T]: ...

    @overload
    def submit(
        self, work: Callable[..., T], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> SyncTaskHandle[T]: ...

    @overload
    def submit(
        self, work: str, /, input: Input | None = None, *, returns: type[T], **options: Unpack[SubmitOptions]
    ) -> SyncTaskHandle[T]: ...

    @overload
    def submit(
        self, work: str, /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> SyncTaskHandle[Any]: ...

    @overload
    def submit(
        self, target: str | None, work: str, /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> SyncTaskHandle[Any]: ...

    def submit(self, /, *what: Any, **rest: Any) -> SyncTaskHandle[Any]:
        return SyncTaskHandle(self, self._wait(self._asynchronous.submit(*what, **rest)))

    @overload
    def stream(
        self, work: str | Callable[..., object], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> Iterator[Event]: ...

    @overload
    def stream(self, target: str, work: str, /, **input: object) -> Iterator[Event]: ...

    def stream(self, /, *what: Any, **rest: Any) -> Iterator[Event]:
        return each(self, self._asynchronous.stream(*what, **rest))

    def handle(self, task_id: str, *, returns: Any = Any) -> SyncTaskHandle[Any]:
        """The handle of a task whose id is known, as from another process."""
        return SyncTaskHandle(self, self._asynchronous.handle(task_id, returns=returns))

    def result(self, task: SyncTaskHandle[Any] | str, *, timeout: float | None = None) -> Any:
        """`handle.result`, also for a task's id."""
        return (self.handle(task) if isinstance(task, str) else task).result(timeout=timeout)

    task = waits(Client.task)
    events = iterates(Client.events)
    cancel = waits(Client.cancel)
    questions = waits(Client.questions)
    answer = waits(Client.answer)
    discover = waits(Client.discover)
    contract = waits(Client.contract)
    terminate = waits(Client.terminate)
    rotate = waits(Client.rotate)

    @property
    def state(self) -> SyncState:
        """The state that all agents share: tasks, agents, resources, policy."""
        from dragoman.sdk.shared_state import SyncState

        return SyncState(self, self._asynchronous.state)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            coroutine.close()
            raise Misconfigured("use it as `with SyncClient(…) as hub:`")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: the caller waits no more
            raise

    def _end(self) -> None:
        loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            # Where another loop runs in this thread, the client's can only be wound up in its own thread.
            asyncio.run_coroutine_threadsafe(_wind_up(loop), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Let gRPC finish the calls that were cancelled: after this loop is closed, it would log errors in whatever other
    loop the program has."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=END_SECONDS)
    await loop.shutdown_asyncgens()


class SyncTaskHandle(BlockingPart[TaskHandle[T]], Generic[T]):
    """A submitted task, as its caller holds it: `TaskHandle` with methods that wait.

    handle = hub.submit("write", {"topic": "tides"}, returns=Report)
    for event in handle.events(): ...
    report = handle.result()
    """

    @property
    def id(self) -> str:
        return self._asynchronous.id

    def result(self, *, timeout: float | None = None) -> T:
        """Wait for the end of the task and return its result: see `TaskHandle.result`."""
        return self._wait(self._asynchronous.result(timeout=timeout))

    events = iterates(TaskHandle.events)
    cancel = waits(TaskHandle.cancel)
    info = waits(TaskHandle.info)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"SyncTaskHandle({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return self.id == str(other) if isinstance(other, SyncTaskHandle | TaskHandle | str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)
