"""Agentmsg's doors on the HTTP port.

desk      who it is, what they said, and how to say no: the same over HTTP and WebSocket
memory    what came before, and what was handed out: ids of messages ⇄ deliveries
tongue    the words on a WebSocket        ws      `/agentmsg/ws`
http      messages, polls, ACKs           state   the shared state: read, write, watch
"""
