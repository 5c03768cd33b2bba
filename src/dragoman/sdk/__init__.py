"""The SDK: one agent or client, any protocol. Users import from `dragoman`.

agent      what an agent does, by functions           client        calling agents; sync: without an event loop
engine     link up, hub heard, heart beating, end     events        what a caller is told
foreground an agent as a program                      shared        the state that all agents share
peers      what agents ask each other                 errors        what is raised
links      the port to the network                    words         what goes over it: nobody's protocol
address    where the hub is, and who we are           trace, world  the trace we are in; time and chance

work          from request to outcome: the desk, its memory, and the task that a handler sees
conversation  help, handoffs and letters between agents; what an agent says of itself
calling       what clients have in common, whatever they speak; the client of the management API
network       HTTP, WebSockets and TLS, whichever protocol's bytes they carry
chiffon, coven, forge, agentmsg, a2acp: a package for each protocol, imported when an address says so. The same names in
              each: `words` an agent says, `talk` of one link, `calls` as they are heard of, `client`, and the bytes

Imports point downwards: agent and client, the protocols, which do not know each other, then work and conversation,
calling, network, links, words. Stands on `wire` and `protocols`; knows nothing of the hub's core.
"""
