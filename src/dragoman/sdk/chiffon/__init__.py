"""Chiffon, as an agent and as a client that gives others work.

mapping  an agent's link over any pipe                client  an orchestrator with a link of its own
calls    one call, and its events
http     the bytes: long poll and POST                ws      the bytes over a WebSocket, with receipts
"""
