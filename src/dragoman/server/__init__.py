"""Bytes in, bytes out: the hub's endpoints. Nothing here decides anything about a task.

server        uvicorn, started and drained by us        asgi                router, bodies, answers, names of the hub
limits        what slow and greedy clients may do       websocket           one WebSocket: a wire (ws_frames)
connection    the connection loop of every wire         session             a protocol's side of one connection
handler       what a protocol's endpoints share         websocket_endpoint  the life of every WebSocket
http_endpoint long polls, acknowledgments, refusals     callbacks           posts to agents' URLs
refusals      refusals before a message is a command    files               files beside the messages
content       what outbound reads of events; pure

chiffon, coven, forge, agentmsg, a2acp: a package for each protocol, whose `endpoints` makes all of its own. Child
processes are in `supervisor`, the management API is in `api`.
"""
