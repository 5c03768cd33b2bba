"""The SDK: one agent or client, any protocol. Users import from `dragoman`.

agent       an agent, and the handlers declared for it   client        calls agents; sync: without an event loop
engine      keeps the link up and sends heartbeats       events        what a client learns of tasks
program     signals, the log, uncaught errors            shared_state  the state that all agents share
peers       what agents ask each other                   errors        what is raised; failures: by kind
links       the ports to the network                     messages      what goes over a link
services    the table of protocols                       runtime       clock, timers, ids and randomness
address     where the hub is, and with which token       trace         the trace that a handler is part of
options     the options of a call                        blocking      plain methods made of asynchronous ones

work          from assignment to outcome: the task runner, its journal, and the task that a handler sees
conversation  help, handoffs and direct messages between agents; status reports
calling       what clients share, whatever protocol they speak; the client of the management API
network       HTTP, WebSockets and TLS, whichever protocol's bytes they carry
chiffon, coven, forge, agentmsg, a2acp: one package for each protocol, imported when an address names it

Imports point downwards: agent and client, the protocols, which do not know each other, then work and conversation,
calling, network, links, messages. The SDK uses `wire`, `protocols` and `messages`, never the hub's core.
"""
