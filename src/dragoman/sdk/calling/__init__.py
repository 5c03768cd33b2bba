"""What clients share, whatever protocol they speak.

calls      how one call goes, and how a client keeps its calls
connected  a client with a link of its own, which it makes again when it breaks
retrying   requests that wait for a hub that is gone for a moment
api        the client of the management API

Clients that keep a link (chiffon, forge, agentmsg, a2acp) use the first two; those that only make requests (the
management API, coven, the shared state) use `retrying`.
"""
