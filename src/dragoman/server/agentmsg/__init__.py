"""Agentmsg at the hub, on the HTTP port.

inbound, outbound   messages ⇄ commands and outgoing messages; pure     ids      names ⇄ the hub's ids
views, answers      a task in agentmsg's terms; the hub's own answers   handler  the same for HTTP and WebSocket
session             `/agentmsg/ws`                                      http     messages, polls, ACKs
state               the shared state: read, write, watch

Nothing is imported here: `dragoman translate` uses `inbound` and `outbound` without a server.
"""
