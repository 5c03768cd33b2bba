"""Chiffon, as an agent and as a client that gives others work.

words   an agent's words: a link over any pipe       client  an orchestrator's, with a link of its own
calls   one call, as it is heard of
http    the bytes: long poll and POST                ws      the bytes over a WebSocket, with receipts
"""
