"""The pytest plugin: the fixture `hub`, and the mark that says what kind of hub it is.

pytest loads this in every run, of every project that has dragoman installed. So nothing is imported here, and nothing
done, before a test asks for the fixture (`tests/unit/testing/test_plugin.py` watches over it).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dragoman.testing.hub import Hub

MARK = "dragoman"
OPTIONS = ("store", "settings", "patience")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    leave_alone(sys.meta_path)


def leave_alone(finders: Iterable[object]) -> None:
    """pytest rewrites the assertions of every package that comes with a plugin, so it would compile all of dragoman
    again: that takes seconds in each run where Python may not write compiled files. pytest has no option against it, so
    this removes the package from pytest's list. If a later pytest has no such list, only those seconds are lost."""
    for finder in finders:
        marked = getattr(finder, "_must_rewrite", None)
        if isinstance(marked, set):
            marked.discard("dragoman")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f'{MARK}(store="memory" | "sqlite", settings={{"rules.idle_seconds": 5}}, patience=10): the hub of this test',
    )


@pytest.fixture
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A real hub in this process, under a clock that the test moves: `hub.add(agent, protocol="coven")`.

    `DRAGOMAN_URL` and `DRAGOMAN_TOKEN` name it while the test runs, so that a `Client()` finds it, too.
    """
    try:
        from dragoman.testing.hub import Hub
        from dragoman.testing.loop import Misused
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "dragoman":
            raise
        pytest.fail("the fixture `hub` needs the hub. Run: pip install 'dragoman[hub]'", pytrace=False)

    mark = request.node.get_closest_marker(MARK)
    options = {} if mark is None else dict(mark.kwargs)
    unknown = [*map(repr, mark.args if mark else ()), *(name for name in options if name not in OPTIONS)]
    if unknown:
        raise Misused(f"pytest.mark.{MARK} takes {', '.join(f'{name}=' for name in OPTIONS)}; not {', '.join(unknown)}")
    data = tmp_path_factory.mktemp("dragoman")
    with Hub(data=data, **options) as hub, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("DRAGOMAN_URL", hub.url)
        monkeypatch.setenv("DRAGOMAN_TOKEN", hub.admin_token)
        yield hub
