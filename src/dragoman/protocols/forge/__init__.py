"""Forge: agents and an orchestrator talk in JSON lines over pipes, or in the same messages over a WebSocket.

types        the words, as values             errors      the six codes
codec        lines and frames to values       packed      MessagePack, held to JSON's rules
state        the life of one request          connection  one end of one link
events       what a connection tells          ratelimit   100 messages a second, as a pure value
"""
