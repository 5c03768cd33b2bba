"""Chiffon's doors on the HTTP port.

desk   who it is, what they said, and how to say no: the same over HTTP and WebSocket
http   messages, polls, acknowledgments, steering of tasks        ws   `/api/agent/ws`
push   envelopes posted to callback URLs
"""
