"""The way to the hub, whichever protocol's bytes go over it.

http       a client with our token                    websocket   one WebSocket: everything of a turn in one write
errands    what a link over HTTP does side by side    files       files beside the messages
tls        whom we believe, and what we show          misdialled  what was probably meant by a wrong address
"""
