"""A2acp's doors on the HTTP port: the broker of the document.

tokens   the auth service: issues, verifies, speaks for the broker        auth     /auth/token, the published keys
desk     who says it, how to answer, how to say no                        agents   /a2acp/agents: what agents serve
reading  what a message means: its contract, its task, its payload
threads  what agents were asked, and by which names they may answer it
seals    contracts in use: their terms, and the keys that open payloads   http     messages, polls, acknowledgments
tongue   the words on a WebSocket                                         ws       /a2acp/ws
"""
