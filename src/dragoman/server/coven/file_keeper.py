"""Files on their way in and out, when whoever brings or fetches them may go away in the middle.

A call that ends early must leave neither bytes that nobody refers to nor a task that refers to bytes which were
dropped. So keeping always runs to its end, and only then is it known whether the file is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from dragoman.core.ports import Files
from dragoman.messages.files import FileRef
from dragoman.protocols.coven.types import FileData

log = structlog.get_logger("dragoman.server")
T = TypeVar("T")


class FileKeeper:
    """The files port, for calls that may be cut off."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._under_way: set[asyncio.Task[Any]] = set()

    async def keep(self, file: FileData, *, owner: str) -> FileRef:
        """Keep a file; if the caller is cut off meanwhile, it is dropped again."""
        keeping = self._begin(self._files.keep(file.data, name=file.filename, mime_type=file.mime_type, owner=owner))
        try:
            return await asyncio.shield(keeping)
        except asyncio.CancelledError:
            keeping.add_done_callback(self._unwanted)
            raise

    async def fetch(self, id: str) -> bytes | None:
        return await self._files.fetch(id)

    def drop(self, id: str) -> None:
        """Some time soon."""
        self._begin(self._files.drop(id))

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Work that goes on to its end even if whoever waits for it is cut off."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a file or a request was refused", why=str(error))

    def _unwanted(self, task: asyncio.Task[FileRef]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.drop(task.result().id)
