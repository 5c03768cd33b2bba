"""The client for programs without an event loop: the same methods, each returns when it is done.

The asynchronous client lives on a loop of its own in a thread of its own. A trace follows: the context of the caller
goes along with every call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from dragoman.sdk.calling.backend import Backend
from dragoman.sdk.client import Client, Input
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.events import Event, Question, TaskInfo
from dragoman.sdk.handle import TaskHandle
from dragoman.sdk.options import SubmitOptions
from dragoman.sdk.runtime import Runtime

if TYPE_CHECKING:
    from dragoman.protocols.a2acp.contracts import Contract, Mode
    from dragoman.protocols.a2acp.intents import Offering
    from dragoman.sdk.shared_state import Change, Entity, EntityType, Shared, SharedState

T = TypeVar("T")
E = TypeVar("E")

END_SECONDS = 2.0
"""How long what a client leaves behind may take to end."""


class SyncClient:
    """`Client`, synchronously: `with SyncClient() as hub: hub.call("deployer", "run_playbook", playbook="x.yml")`."""

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
        self._client = Client(
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
            self._do(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._do(self._client.__aexit__(*exc))
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
        return self._do(self._client.call(*what, **rest))

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
        return SyncTaskHandle(self, self._do(self._client.submit(*what, **rest)))

    @overload
    def stream(
        self, work: str | Callable[..., object], /, input: Input | None = None, **options: Unpack[SubmitOptions]
    ) -> Iterator[Event]: ...

    @overload
    def stream(self, target: str, work: str, /, **input: object) -> Iterator[Event]: ...

    def stream(self, /, *what: Any, **rest: Any) -> Iterator[Event]:
        return self._each(self._client.stream(*what, **rest))

    def handle(self, task_id: str, *, returns: Any = Any) -> SyncTaskHandle[Any]:
        return SyncTaskHandle(self, self._client.handle(task_id, returns=returns))

    def result(self, task: SyncTaskHandle[Any] | str, *, timeout: float | None = None) -> Any:
        """Raises `StillRunning` after so many seconds; the task goes on, and its result may be asked for again."""
        return (self.handle(task) if isinstance(task, str) else task).result(timeout=timeout)

    def task(self, task: SyncTaskHandle[Any] | str) -> TaskInfo:
        return self._do(self._client.task(str(task)))

    def events(self, task: SyncTaskHandle[Any] | str, *, after: int = 0) -> Iterator[Event]:
        return self._each(self._client.events(str(task), after=after))

    def cancel(self, task: SyncTaskHandle[Any] | str, reason: str | None = None) -> None:
        self._do(self._client.cancel(str(task), reason))

    def questions(self, *, status: str | None = "open") -> list[Question]:
        return self._do(self._client.questions(status=status))

    def answer(self, question_id: str, answer: Any) -> None:
        self._do(self._client.answer(question_id, answer))

    def discover(
        self,
        intent: str | None = None,
        *,
        domain: str | None = None,
        agent: str | None = None,
        capability: str | None = None,
        version: str | None = None,
    ) -> list[Offering]:
        return self._do(
            self._client.discover(intent, domain=domain, agent=agent, capability=capability, version=version)
        )

    def contract(
        self,
        intent: str,
        *,
        agent: str | None = None,
        mode: Mode = "broker",
        encrypt: bool = False,
        request_schema: Any = None,
        response_schema: Any = None,
    ) -> Contract:
        schemas = {"request_schema": request_schema, "response_schema": response_schema}
        return self._do(self._client.contract(intent, agent=agent, mode=mode, encrypt=encrypt, **schemas))

    def terminate(self, contract: Contract | str, reason: str = "") -> None:
        self._do(self._client.terminate(contract, reason))

    def rotate(self, contract: Contract | str) -> None:
        self._do(self._client.rotate(contract))

    @property
    def state(self) -> SyncState:
        """What all agents share."""
        return SyncState(self, self._client.state)

    def _each(self, source: AsyncIterator[E]) -> Iterator[E]:
        async def following() -> E | None:
            return await anext(source, None)

        try:
            while (event := self._do(following())) is not None:
                yield event
        finally:
            self._do(source.aclose())  # type: ignore[attr-defined]

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            coroutine.close()
            raise Misconfigured("use it as `with SyncClient(…) as hub:`")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: nobody waits for it any more
            raise

    def _end(self) -> None:
        loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            # Where another loop runs in this thread, ours can only be wound up in its own.
            asyncio.run_coroutine_threadsafe(_wind_up(loop), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Let gRPC hear how the calls ended that were cancelled: told of it after this loop is closed, it would complain in
    whatever other loop the program has."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=END_SECONDS)
    await loop.shutdown_asyncgens()


class SyncTaskHandle(Generic[T]):
    """`TaskHandle`, synchronously."""

    def __init__(self, client: SyncClient, handle: TaskHandle[T]) -> None:
        self._client = client
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.id

    def result(self, *, timeout: float | None = None) -> T:
        return self._client._do(self._handle.result(timeout=timeout))

    def events(self, *, after: int = 0) -> Iterator[Event]:
        return self._client._each(self._handle.events(after=after))

    def cancel(self, reason: str | None = None) -> None:
        self._client._do(self._handle.cancel(reason))

    def info(self) -> TaskInfo:
        return self._client._do(self._handle.info())

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"SyncTaskHandle({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return self.id == str(other) if isinstance(other, SyncTaskHandle | TaskHandle | str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


class SyncState:
    """`SharedState`, synchronously."""

    def __init__(self, client: SyncClient, state: SharedState) -> None:
        self._client = client
        self._state = state

    def read(self) -> Shared:
        return self._client._do(self._state.read())

    def get(self, entity_type: EntityType, entity_id: str) -> Entity:
        return self._client._do(self._state.get(entity_type, entity_id))

    def create(self, entity_type: EntityType, entity_id: str, value: Mapping[str, Any]) -> Entity:
        return self._client._do(self._state.create(entity_type, entity_id, value))

    def update(self, entity_type: EntityType, entity_id: str, changes: Mapping[str, Any], *, version: int) -> Entity:
        return self._client._do(self._state.update(entity_type, entity_id, changes, version=version))

    def delete(self, entity_type: EntityType, entity_id: str, *, version: int) -> None:
        self._client._do(self._state.delete(entity_type, entity_id, version=version))

    def watch(
        self, cursor: int | None = None, entity_type: EntityType | None = None, entity_id: str | None = None
    ) -> Iterator[Change]:
        return self._client._each(self._state.watch(cursor, entity_type, entity_id))
