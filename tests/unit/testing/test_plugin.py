"""The plugin in runs of pytest of its own: found by itself, cheap, told apart by its mark, and as its page shows it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

import dragoman
from dragoman.testing.plugin import leave_alone

pytest_plugins = ["pytester"]

PLAIN = ("-p", "no:asyncio", "-p", "no:cacheprovider")
PAGE = Path(__file__).parents[3] / "docs/howto/testing.md"
OF_THE_HUB = (
    "app",
    "api",
    "core",
    "messages",
    "protocols",
    "sdk",
    "security",
    "server",
    "stores",
    "testing",
)


@pytest.fixture(autouse=True, scope="module")
def _imported_once() -> None:
    """pytester removes the modules that a run in this process imported, and `dragoman` keeps the names it has loaded of
    them. So what those runs import is imported before the first of them."""
    for module in walk_packages(dragoman.__path__, "dragoman."):
        if module.name.split(".")[1] in OF_THE_HUB and not module.name.endswith("__main__"):
            import_module(module.name)


def test_a_run_that_does_not_use_it_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_nothing_is_loaded(request):
            assert request.config.pluginmanager.hasplugin("dragoman")
            loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "dragoman")
            assert loaded == ["dragoman", "dragoman.testing", "dragoman.testing.plugin"]
            assert not {"msgspec", "grpc", "httpx2", "uvicorn", "structlog"} & set(sys.modules)
    """)
    others = [
        option
        for name in ("cacheprovider", "schemathesis", "hypothesispytest", "xdist")
        for option in ("-p", f"no:{name}")
    ]
    pytester.runpytest_subprocess(*others).assert_outcomes(passed=1)


def test_its_package_is_not_compiled_again_in_every_run(pytestconfig: pytest.Config) -> None:
    hook = AssertionRewritingHook(pytestconfig)
    hook.mark_rewrite("dragoman", "another")
    leave_alone([object(), hook])
    assert hook._must_rewrite == {"another"}


def test_the_page_on_testing_is_true(pytester: pytest.Pytester) -> None:
    agent, first, *others = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    imports = first.partition("\n\n\n")[0]
    pytester.makepyfile(deployer=agent, test_deployer=first)
    pytester.makepyfile(**{f"test_other_{n}": f"{imports}\n\n\n{other}" for n, other in enumerate(others)})
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    pytester.syspathinsert()
    tests = len(re.findall(r"^(?:async )?def test_", "\n".join((first, *others)), flags=re.MULTILINE))
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=tests + 3)


def test_no_plugin_for_coroutines_is_needed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from dragoman import Agent, Client, SyncClient

        def test_plain(hub):
            agent = Agent("greeter")

            @agent.on("greet")
            async def greet(name: str) -> str:
                async with Client() as client:
                    return f"Hello, {name}!" if await client.questions() == [] else ""

            hub.add(agent, protocol="coven")
            assert hub.call("greeter", "greet", name="Ada") == "Hello, Ada!"
            with SyncClient() as client:
                assert client.call("greeter", "greet", name="Ada") == "Hello, Ada!"
    """)
    pytester.runpytest_inprocess(*PLAIN).assert_outcomes(passed=1)


def test_an_unknown_option_of_the_mark_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.dragoman(shop="sqlite")
        def test_unknown(hub): ...

        @pytest.mark.dragoman("sqlite")
        def test_unnamed(hub): ...
    """)
    ran = pytester.runpytest_inprocess("--strict-markers", *PLAIN)
    ran.assert_outcomes(errors=2)
    ran.stdout.fnmatch_lines(["*pytest.mark.dragoman takes store=, settings=, patience=; not shop"])
    ran.stdout.fnmatch_lines(["*pytest.mark.dragoman takes store=, settings=, patience=; not 'sqlite'"])


def test_what_went_wrong_unseen_fails_the_test_at_its_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import asyncio
        import threading

        from dragoman import Agent

        def test_unseen(hub):
            agent, ended = Agent("leaver"), threading.Event()

            @agent.on("leave")
            async def leave() -> None:
                agent.stop()
                serving = next(task for task in asyncio.all_tasks() if task.get_name() == "agent leaver")
                serving.add_done_callback(lambda _: ended.set())

            hub.add(agent)
            with hub.sync_client() as client:
                client.call("leaver", "leave")
            ended.wait(10)
    """)
    ran = pytester.runpytest_inprocess(*PLAIN)
    ran.assert_outcomes(passed=1, errors=1)
    ran.stdout.fnmatch_lines(["*Misused: leaver ended by itself: it was stopped"])
