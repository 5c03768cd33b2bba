"""`dragoman conformance`: clauses of the protocols' documents, tried from outside: against a hub, or against an agent.

command.py     the command, and its report                  checklist.py   what a check is, and how checks are run
cast.py        agents that are let in, and put out again    agents.py      checks of an agent that somebody wrote
chiffon.py, coven.py, forge.py, agentmsg.py, a2acp.py       checks of a hub, one list for each protocol

Checks speak plain HTTP, WebSocket and gRPC and know the documents, not the hub: nothing of the SDK and nothing of the
hub's inside is used, save for coven's generated messages. Ids are those of the manifests in tests/conformance.
"""
