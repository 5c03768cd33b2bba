"""Forge, as an agent and as a client.

link     an agent's link over any wire                   client  submits tasks and follows them
session  requests, responses, notices, and their rate    entry   the rows of `sdk.services`
ws       the bytes over a WebSocket                      stdio   the bytes over pipes, for a child of the hub
"""
