"""A hub that is an agent of another hub: work, reports, questions, files and cancels pass between the two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman import Agent, Client, File, Task, TaskFailed
from dragoman.sdk.address import parse
from dragoman.sdk.relay import Relay
from tests.e2e.at_work import online, open_question, people, serving, soon, token, url
from tests.support.hubproc import HubProcess, running


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("here")) as hub:
        yield hub


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("there")) as hub:
        made = hub.admin.post("/api/v1/users", {"name": "realm-here", "role": "operator"})
        assert made.status == 201, made
        yield hub


def worker(there: HubProcess, id: str) -> Agent:
    return Agent(id, kind=id, token=token(there, id, "coven", kind=id))


def relay_to(there: HubProcess, here: HubProcess, id: str, protocol: str = "forge", **options: object) -> Relay:
    operator = there.admin.post("/api/v1/users/realm-here/token", {}).json["token"]
    return Relay(
        id,
        parse(there.url, str(operator)),
        token=token(here, id, protocol, kind="relay"),
        **options,  # type: ignore[arg-type]
    )


def way_there(there: HubProcess) -> str:
    return f"coven://{there.ready['grpc']}"


@asynccontextmanager
async def relaying(here: HubProcess, relay: Relay, protocol: str = "forge") -> AsyncIterator[None]:
    task = asyncio.ensure_future(relay.serve(url(here, f"{protocol}+ws")))
    try:
        await online(here, relay.id)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_work_is_done_by_the_other_hub_within_one_trace(here: HubProcess, there: HubProcess) -> None:
    agent = worker(there, "w1")

    @agent.on("double")
    async def double(task: Task, number: int) -> dict[str, int]:
        await task.progress(40, "doubling", output="by two\n")
        return {"doubled": 2 * number}

    async with (
        serving(there, agent, at=way_there(there)),
        relaying(here, relay_to(there, here, "r1")),
        people(here) as admin,
        people(there) as other,
    ):
        handle = await soon(admin.submit("r1", "double", {"number": 21}))
        assert await soon(handle.result()) == {"doubled": 42}
        mine = await handle.info()
        [counterpart] = there.tasks(type="double")
        assert (await other.task(counterpart["id"])).trace_id == mine.trace_id
        assert "by two" in mine.output


async def test_a_failure_there_is_the_same_failure_here(here: HubProcess, there: HubProcess) -> None:
    agent = worker(there, "w2")

    @agent.on("refuse")
    async def refuse(task: Task) -> None:
        raise task.reject("not on a Friday")

    async with (
        serving(there, agent, at=way_there(there)),
        relaying(here, relay_to(there, here, "r2")),
        people(here) as admin,
    ):
        with pytest.raises(TaskFailed, match="not on a Friday"):
            await soon(admin.call("refuse", {}, agent="r2"))


@pytest.mark.parametrize("where", ["here", "there"])
async def test_a_question_is_answered_at_either_hub(here: HubProcess, there: HubProcess, where: str) -> None:
    agent = worker(there, f"w3-{where}")

    @agent.on(f"decide-{where}")
    async def decide(task: Task) -> str:
        return f"so {await task.ask('Ship it?', options=['yes', 'no'])}"

    relay = relay_to(there, here, f"r3-{where}")
    async with (
        serving(there, agent, at=way_there(there)),
        relaying(here, relay),
        people(here) as admin,
        people(there) as other,
    ):
        handle = await soon(admin.submit(relay.id, f"decide-{where}", {}))
        at_here, at_there = await soon(open_question(admin)), await soon(open_question(other))
        assert (at_here.question, at_here.options) == (at_there.question, at_there.options)
        client, question = (admin, at_here) if where == "here" else (other, at_there)
        await client.answer(question.id, "yes")
        assert await soon(handle.result()) == "so yes"
        assert await other.questions() == []
        assert await admin.questions() == []


async def test_a_cancel_here_reaches_the_agent_there(here: HubProcess, there: HubProcess) -> None:
    agent, began, ended = worker(there, "w4"), asyncio.Event(), asyncio.Event()

    @agent.on("wait")
    async def wait(task: Task) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with (
        serving(there, agent, at=way_there(there)),
        relaying(here, relay_to(there, here, "r4")),
        people(here) as admin,
    ):
        handle = await soon(admin.submit("r4", "wait", {}))
        await soon(began.wait())
        await handle.cancel("no longer wanted")
        await soon(ended.wait())


async def test_a_relay_that_starts_again_comes_to_the_task_that_it_has_there(
    here: HubProcess, there: HubProcess, tmp_path: Path
) -> None:
    agent, began, go = worker(there, "w5"), asyncio.Event(), asyncio.Event()

    @agent.on("once")
    async def once(task: Task) -> str:
        began.set()
        await go.wait()
        return f"done with {task.files[0].data!r}"

    first = relay_to(there, here, "r5", state_dir=str(tmp_path))
    operator, token_here = first._there, first._token
    async with serving(there, agent, at=way_there(there)):
        caller = token(here, "caller", "forge")
        async with Client(url(here, "forge+ws"), token=caller) as client:
            async with relaying(here, first):
                handle = await soon(client.submit("r5", "once", {}, files=[File("a.txt", "text/plain", b"file")]))
                await soon(began.wait())
            second = Relay("r5", operator, token=token_here, state_dir=str(tmp_path))
            async with relaying(here, second):
                go.set()
                assert await soon(handle.result()) == "done with b'file'"
    assert len(there.tasks(type="once")) == 1


async def test_a_relay_offers_nothing_that_only_relays_do(here: HubProcess, there: HubProcess) -> None:
    agent, other = worker(there, "w6"), Agent("back", kind="relay", token=token(there, "back", "coven", kind="relay"))
    agent.on("own")(lambda: "done")
    other.on("passed-back")(lambda: "done")
    async with (
        serving(there, agent, other, at=way_there(there)),
        relaying(here, relay_to(there, here, "r6", "chiffon"), "chiffon"),
    ):
        shown = here.admin.get("/api/v1/agents/r6").json
        assert "own" in str(shown)
        assert "passed-back" not in str(shown)


async def test_a_kill_of_the_other_hub_costs_nothing(here: HubProcess, tmp_path: Path) -> None:
    with running(tmp_path) as there:
        assert there.admin.post("/api/v1/users", {"name": "realm-here", "role": "operator"}).status == 201
        agent = Agent("w7", kind="w7", token=token(there, "w7", "chiffon", kind="w7"))
        began, go = asyncio.Event(), asyncio.Event()

        @agent.on("survive")
        async def survive(task: Task) -> str:
            began.set()
            await go.wait()
            return "whole"

        relay = relay_to(there, here, "r7")
        async with serving(there, agent, at=url(there, "chiffon+ws")), relaying(here, relay), people(here) as admin:
            handle = await soon(admin.submit("r7", "survive", {}))
            await soon(began.wait())
            await asyncio.to_thread(there.kill)
            await asyncio.to_thread(there.return_to_its_port)
            go.set()
            assert await soon(handle.result()) == "whole"
            assert len(there.tasks(type="survive")) == 1
