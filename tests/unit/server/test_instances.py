"""The header by which an agent says which of its processes it is: on polls and handshakes of every protocol."""

from __future__ import annotations

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dragoman.core.ids import AgentId
from dragoman.testing import Hub

POLLS = {"chiffon": "/api/agent/messages", "agentmsg": "/agentmsg/messages", "a2acp": "/a2acp/messages"}
SOCKETS = {"chiffon": "/api/agent/ws", "agentmsg": "/agentmsg/ws", "forge": "/forge/ws", "a2acp": "/a2acp/ws"}
BAD = {"empty": "", "a space": "two words", "too long": "x" * 129}


def headers(token: str, instance: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "dragoman-instance": instance}


def instances(hub: Hub, id: str) -> tuple[str, ...]:
    agent = hub._environment.running.intake.agent(AgentId(id))
    assert agent is not None
    newest = () if agent.instance is None else (agent.instance,)
    return (*reversed(agent.former_instances), *newest)


@pytest.mark.parametrize("protocol", POLLS)
def test_a_poll_says_which_process_it_is(protocol: str) -> None:
    with Hub() as hub, httpx2.Client(base_url=hub.url, verify=False) as http:
        _, token = hub.let_in("ann", protocol)
        for instance in ("one", "one", "two"):
            assert http.get(POLLS[protocol], headers=headers(token, instance)).status_code == 200
        assert instances(hub, "ann") == ("one", "two")
        for bad in BAD.values():
            refused = http.get(POLLS[protocol], headers=headers(token, bad))
            assert refused.status_code in (400, 422), refused.text
            assert "visible ASCII" in refused.text
        assert instances(hub, "ann") == ("one", "two")


@pytest.mark.parametrize("protocol", SOCKETS)
def test_a_handshake_says_which_process_it_is(protocol: str) -> None:
    with Hub() as hub:
        _, token = hub.let_in("ann", protocol)
        url = hub.url.replace("http", "ws") + SOCKETS[protocol]
        with connect(url, additional_headers=headers(token, "one")):
            hub.settle()
            assert instances(hub, "ann") == ("one",)
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers=headers(token, BAD["a space"]))
        assert refused.value.response.status_code in (400, 422)
