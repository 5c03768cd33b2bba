"""Forge, as the hub serves it: a session for each connection, and the WebSocket for agents elsewhere.

inbound    a message of an agent becomes a command
outbound   an outgoing message becomes messages; what forge shows of tasks and agents
handler    what all connections share: rate limits, logs, the bus
session    one connection: decodes its lines or frames, encodes answers
queries    the requests that only read, and which tasks an agent may see
bus        publish and subscribe
websocket  `/forge/ws`

Child processes are in `supervisor`; they have a session as well. Nothing is imported here: the translator needs only
what is pure.
"""
