"""Forge: agents and an orchestrator talk in JSON lines over pipes, or in the same messages over a WebSocket.

types        the messages, as values          errors      the six codes
codec        lines and frames to values       packed      MessagePack, held to JSON's rules
ratelimit    100 messages a second, as a value
"""
