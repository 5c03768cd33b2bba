"""Bytes in, bytes out: the hub's endpoints. Nothing here decides anything about a task.

server       uvicorn, started and drained by us         asgi                the few hot paths, before everything else
limits       what slow and greedy clients may do        websocket           one WebSocket: a wire (ws_frames)
connection   the connection loop of every wire          session             a protocol's side of one connection
endpoint     what the server asks of every endpoint     handler             what a protocol's endpoints share
http_endpoint  long polls, acknowledgments, refusals    websocket_endpoint  the life of every WebSocket
authentication  whose token it is                       refusals            what was refused before it was a command
outgoing     whole outputs, what cannot be encoded      files               files beside the messages
request_memory  the bytes that a request holds          hosts, operations   names of the hub; health and metrics

chiffon, coven, forge, agentmsg, a2acp: a package for each protocol, whose `endpoints` makes all of its own. Child
processes are in `supervisor`, the management API is in `api`.
"""
