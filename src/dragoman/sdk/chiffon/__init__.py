"""Chiffon, as an agent and as a client that gives others work.

link   an agent's messages over any pipe       client  an orchestrator with a connection of its own, and its calls
http   the pipe: long poll and POST            ws      the pipe over a WebSocket, with receipts
"""
