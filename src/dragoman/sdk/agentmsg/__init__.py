"""Agentmsg, as an agent and as a client. What agents say to each other in it is in `sdk.conversation`.

mapping  an agent's link over any pipe                client  an agent that gives others work
session  one link's messages, each once; receipts     calls   one call, and its events
io       the bytes over HTTP and over a WebSocket
"""
