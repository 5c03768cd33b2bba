"""Scenarios: scripted exchanges between fake agents and a hub, for `dragoman play` and `dragoman conformance`.

steps.py         steps, how they are run, and at which hub    fake_agents.py   agents that exist for one scenario
conformance.py   `dragoman conformance hub` and `agent`, and the checks of an agent
chiffon.py, coven.py, forge.py, agentmsg.py, a2acp.py         checks of a hub, one list for each protocol
play.py          `dragoman play`

Fake agents speak plain HTTP, WebSocket and gRPC and know the documents, not the hub: nothing of the SDK and nothing of
the hub's inside is used, save for coven's generated messages. Ids are those of the manifests in tests/conformance.
"""
