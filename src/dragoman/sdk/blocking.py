"""Plain methods made from asynchronous ones, with the same signature and docstring: each waits until it is done.

`SyncTask` takes its methods from `Task` in this way, and `SyncClient` its own from `Client`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Blocking(ABC, Generic[A]):
    """A class with blocking methods, around an object with asynchronous ones."""

    _asynchronous: A

    @abstractmethod
    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run this on the event loop of the asynchronous object, and wait."""


class BlockingPart(Blocking[A]):
    """The same, on the event loop of another one."""

    def __init__(self, owner: Blocking[Any], asynchronous: A) -> None:
        self._owner = owner
        self._asynchronous = asynchronous

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._owner._wait(coroutine)


def waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """A coroutine function as one that waits for the result."""

    @functools.wraps(method)
    def wait(self: Blocking[A], /, *args: P.args, **options: P.kwargs) -> T:
        return self._wait(method(self._asynchronous, *args, **options))

    return wait


def iterates(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[Blocking[A], P], Iterator[T]]:
    """An asynchronous generator as a plain one."""

    @functools.wraps(method)
    def iterate(self: Blocking[A], /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        return each(self, method(self._asynchronous, *args, **options))

    return iterate


def each(waiting: Blocking[Any], source: AsyncIterator[T]) -> Iterator[T]:
    """What an asynchronous generator yields."""

    async def following() -> tuple[T] | None:
        async for one in source:
            return (one,)
        return None

    try:
        while (found := waiting._wait(following())) is not None:
            yield found[0]
    finally:
        waiting._wait(source.aclose())  # type: ignore[attr-defined]
