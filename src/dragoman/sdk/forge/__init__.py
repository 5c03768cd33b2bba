"""Forge, as an agent and as a client.

words   an agent's words: a link over any wire        client  submits tasks and follows them
talk    requests, responses, notices, and the pace    calls   one call, as it is heard of
ws      the bytes over a WebSocket                    stdio   the bytes over pipes, for a child of the hub
"""
