"""An agent or a client with another agent's token, or over another protocol than its own: refused at once, over every
address, in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dragoman import Agent, Client, DragomanError, NotAllowed, RequestRefused
from tests.e2e import at_work
from tests.e2e.at_work import soon
from tests.support.hubproc import HubProcess

ADDRESSES = [
    ("chiffon", "chiffon+http"),
    ("chiffon", "chiffon+ws"),
    ("agentmsg", "agentmsg+ws"),
    ("agentmsg", "agentmsg+http"),
    ("forge", "forge+ws"),
    ("a2acp", "a2acp+ws"),
    ("a2acp", "a2acp+http"),
    ("coven", "coven"),
]
PROGRAM = """
import os
from dragoman import Agent
agent = Agent("wrong", token=os.environ["THE_TOKEN"])
agent.on("work")(lambda: 1)
agent.run(os.environ["THE_URL"])
"""


def address(hub: HubProcess, scheme: str) -> str:
    if scheme == "coven":
        return f"coven://{hub.ready['grpc']}"
    return hub.url.replace("http://", f"{scheme}://")


async def test_over_every_address_an_agent_with_anothers_token_ends_and_learns_whose_it_is(hub: HubProcess) -> None:
    for protocol, scheme in ADDRESSES:
        owner = f"right-{scheme.replace('+', '-')}"
        wrong = Agent("wrong", token=at_work.token(hub, owner, protocol))
        wrong.on("work")(lambda: 1)
        with pytest.raises(NotAllowed) as refused:
            await soon(wrong.serve(address(hub, scheme)))
        assert f"belongs to agent '{owner}', not to 'wrong'" in str(refused.value), scheme


async def test_over_every_address_the_error_names_the_owner_of_a_clients_wrong_token(hub: HubProcess) -> None:
    for protocol, scheme in ADDRESSES:
        owner = f"caller-{scheme.replace('+', '-')}"
        token = at_work.token(hub, owner, protocol)

        async def call(url: str = address(hub, scheme), token: str = token) -> None:
            async with Client(url, token=token, id="wrong") as client:
                await client.call("nobody", "work")

        with pytest.raises(DragomanError) as refused:
            await soon(call())
        assert f"belongs to agent '{owner}', not to 'wrong'" in str(refused.value), scheme


async def test_over_forge_a_client_may_name_the_agent_that_its_token_belongs_to(hub: HubProcess) -> None:
    worker = Agent("forge-worker", token=at_work.token(hub, "forge-worker", "forge"))
    worker.on("work")(lambda: 1)
    token = at_work.token(hub, "forge-caller", "forge")
    url = address(hub, "forge+ws")
    async with at_work.serving(hub, worker, at=url), Client(url, token=token, id="forge-caller") as client:
        assert await soon(client.call("forge-worker", "work")) == 1


async def test_over_every_address_an_agent_that_was_added_for_another_protocol_ends_with_the_reason(
    hub: HubProcess,
) -> None:
    for protocol, scheme in ADDRESSES:
        added_for = "forge" if protocol != "forge" else "chiffon"
        name = f"{added_for}-over-{scheme.replace('+', '-')}"
        agent = Agent(name, token=at_work.token(hub, name, added_for))
        agent.on("work")(lambda: 1)
        with pytest.raises(NotAllowed) as refused:
            await soon(agent.serve(address(hub, scheme)))
        assert f"{name} was added to speak {added_for}" in str(refused.value), scheme


async def test_the_hub_names_the_kind_of_a_chiffon_client_that_leaves_it_out(hub: HubProcess) -> None:
    at_work.token(hub, "worker", "chiffon")
    for scheme in ("chiffon+ws", "chiffon+http"):
        name = f"boss-{scheme.replace('+', '-')}"
        token = at_work.token(hub, name, "chiffon", kind="orchestrator")
        async with Client(address(hub, scheme), token=token, id=name) as client:
            with pytest.raises((RequestRefused, NotAllowed)) as refused:
                await soon(client.call("worker", "work"))
        assert f"gent '{name}' was added with a kind, and sends under that: as 'orchestrator'" in str(refused.value)


def test_a_program_with_anothers_token_prints_that_sentence_and_no_traceback(hub: HubProcess) -> None:
    token = at_work.token(hub, "right", "forge")
    settings = {**os.environ, "THE_TOKEN": token, "THE_URL": address(hub, "forge+ws")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=settings, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    said = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert said == [
        "error: This token belongs to agent 'right', not to 'wrong'. Speak only for the agent whose token you hold."
    ]
