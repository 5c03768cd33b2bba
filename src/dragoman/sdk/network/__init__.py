"""Transports to the hub, the same for every protocol.

http            a client with the token; files beside the messages     websocket  one WebSocket, one write for each turn
polling         a pipe over HTTP: long poll in, POST out               tls        trusted CAs, the client's certificate
connect_errors  what was probably meant by a wrong address
"""
