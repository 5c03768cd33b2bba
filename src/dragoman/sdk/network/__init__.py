"""The way to the hub, whichever protocol's bytes go over it.

http       a client with our token                       websocket       one WebSocket, one write for each turn
pipe       whole frames in and out                       polling         a pipe over HTTP: long poll in, POST out
tls        whom we trust, and which certificate we show  files           files beside the messages
connect_errors  what was probably meant by a wrong address
"""
