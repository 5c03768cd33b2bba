"""The way to the hub, whichever protocol's bytes go over it.

http            a client with our token; files beside the messages     websocket  one WebSocket, one write for each turn
polling         a pipe over HTTP: long poll in, POST out               tls        trusted CAs, our certificate
connect_errors  what was probably meant by a wrong address
"""
