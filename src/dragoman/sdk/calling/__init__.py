"""What clients share, whatever protocol they speak.

backend    the port between `Client` and each way of calling; requests that wait for a hub that is gone for a moment
calls      how one call goes, how a client keeps its calls, and how it connects again when its link breaks
api        the client of the management API

Clients that keep a link (chiffon, forge, agentmsg, a2acp) use `calls`; the others only make requests.
"""
