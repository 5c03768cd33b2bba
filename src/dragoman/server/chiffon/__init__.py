"""Chiffon's endpoints on the HTTP port.

inbound    a message becomes a command (pure)            outbound   an outgoing message becomes frames (pure)
handler    decodes, refuses and encodes for all of them  http       messages, polls, acknowledgments, steering
websocket  `/api/agent/ws`                              files      `/api/agent/files`, for agents of every protocol

Nothing is imported here: `dragoman translate` uses `inbound` and `outbound` without a server.
"""
