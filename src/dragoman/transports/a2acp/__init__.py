"""A2acp's doors on the HTTP port: the broker of the document.

tokens   the auth service: issues, verifies, speaks for the broker        auth     /auth/token, the published keys
desk     who says it, what it means, and how to say no                    agents   /a2acp/agents: what agents serve
seals    contracts in use: their terms, and the keys that open payloads   http     messages, polls, acknowledgments
tongue   the words on a WebSocket                                         ws       /a2acp/ws
"""
