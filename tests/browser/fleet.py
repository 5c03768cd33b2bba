"""The agents of the browser tests: programs of the SDK in one thread, over two protocols, that do as a test tells them.

deployer   agentmsg   deploy: asks a person when `ask` is set, fails once when `fails` is set
builder    chiffon    build: reports progress, and ends; flaky: fails for good until `mended`
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

from dragoman import Agent, Task
from tests.support.hubproc import HubProcess, until

QUESTION = "Restart the production cluster?"
REFUSED = "the registry refused the image web:2.4.1"


def deployer(token: str) -> Agent:
    agent = Agent("deployer", token=token, version="1.2.3", concurrency=8)
    failed_before: set[str] = set()

    @agent.on("deploy", timeout=600)
    async def deploy(task: Task, service: str, ask: bool = False, fails: bool = False) -> dict[str, Any]:
        """Put a service into production."""
        await task.progress(30, "pull", output=f"pulling {service}\n")
        if ask and await task.ask(QUESTION, options=["yes", "no"], timeout=600, default="no") == "no":
            raise task.reject("declined by a person")
        if fails and task.id not in failed_before:
            failed_before.add(task.id)
            raise task.reject(REFUSED)
        await task.progress(80, "start", output=f"starting {service}\n")
        return {"service": service, "healthy": True}

    return agent


def builder(token: str) -> Agent:
    agent = Agent("builder", token=token, kind="builder", concurrency=8)

    @agent.on("build", timeout=60)
    async def build(task: Task, target: str) -> dict[str, Any]:
        """Build a target."""
        await task.progress(50, "compile", output=f"compiling {target}\n")
        return {"target": target}

    @agent.on("name", timeout=600)
    async def name(task: Task, release: str) -> dict[str, Any]:
        """Name a release."""
        return {"release": release, "name": await task.ask(f"What is the name of {release}?", timeout=600)}

    return agent


class Fleet:
    """Both agents at a hub, in a thread of their own; they connect again by themselves."""

    def __init__(self, hub: HubProcess) -> None:
        self._hub = hub
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()
        self._serving: list[Future[None]] = []

    def start(self) -> None:
        for make, protocol in ((deployer, "agentmsg"), (builder, "chiffon")):
            agent = make("")
            made = self._hub.admin.post(
                "/api/v1/agents", {"agent_id": agent.id, "protocol": protocol, "kind": agent.id}
            )
            assert made.status == 201, made
            agent = make(made.json["token"])
            url = self._hub.url.replace("http://", f"{protocol}+ws://")
            self._serving.append(asyncio.run_coroutine_threadsafe(agent.serve(url), self._loop))
        self.online()

    def online(self) -> None:
        def are() -> bool:
            for serving in self._serving:
                if serving.done():
                    serving.result()
            found = self._hub.admin.get("/api/v1/agents").json["agents"]
            return {one["id"] for one in found if one["status"] in ("idle", "busy")} >= {"deployer", "builder"}

        until(are, "the fleet is online")

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
