"""Agentmsg, as an agent and as a client. What agents say to each other in it is in `sdk.conversation`.

words   an agent's words: a link over any pipe        client  an agent that gives others work
talk    one link's messages, each once; receipts      calls   one call, as it is heard of
io      the bytes over HTTP and over a WebSocket
"""
