"""The way to the hub, whichever protocol's bytes go over it.

http       a client with our token                    websocket   one WebSocket: everything of a turn in one write
pipe       whole frames in and out                    polling     a pipe over HTTP: long poll in, POST out
errands    what a link over HTTP does side by side    files       files beside the messages
tls        whom we believe, and what we show          misdialled  what was probably meant by a wrong address
"""
