"""The SDK: one agent or client, any protocol. Users import from `dragoman`.

agent       an agent, and the handlers declared for it   client        calls agents; sync: without an event loop
engine      keeps the link up and the heart beating      events        what a client learns of tasks
foreground  an agent as a program                        shared_state  the state that all agents share
peers       what agents ask each other                   errors        what is raised; failures: by kind
links       the port to the network                      messages      what goes over it
services    the table of protocols                       runtime       clock, timers, ids and randomness
address     where the hub is, and who we are             trace         the trace we are in
excepthook  errors that a program does not catch

work          from assignment to outcome: the task runner, its journal, and the task that a handler sees
conversation  help, handoffs and direct messages between agents; status reports
calling       what clients share, whatever protocol they speak; the client of the management API
network       HTTP, WebSockets and TLS, whichever protocol's bytes they carry
chiffon, coven, forge, agentmsg, a2acp: one package for each protocol, imported when an address names it. The same
              names in each: `mapping` of messages, `session` over one link, `calls` of a `client`, and the bytes

Imports point downwards: agent and client, the protocols, which do not know each other, then work and conversation,
calling, network, links, messages. Stands on `wire` and `protocols`; knows nothing of the hub's core.
"""
