"""Forge: agents and an orchestrator exchange JSON lines over pipes, or the same messages over a WebSocket.

types      the messages, as values          mapping    payloads ⇄ the hub's messages
codec      lines and frames ⇄ values        errors     the six codes, faults ⇄ errors
packed     MessagePack, held to JSON's rules
ratelimit  100 messages a second, as a value
"""
