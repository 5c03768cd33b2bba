"""Bytes in, bytes out: the hub's doors. Nothing here decides anything about a task.

server     uvicorn, started and drained by us          asgi         the few hot paths, before everything else
limits     what slow and greedy clients may do         websocket    frames straight to whoever listens (ws_frames)
driver     the connection loop behind every ordered link          tongue       what it asks of a protocol
ws_door    the life of every WebSocket link            http_door    long polls, acknowledgments, saying no
identity   whose token it is                           refusals     what was refused before it was a command
account    a task's output, put together again         agent_files  files beside the messages
operations health, metrics, the dashboard
unspeakable: what becomes of an outgoing message that cannot be put into words.

chiffon, coven, forge, agentmsg, a2acp: a package for the doors of each protocol. Child processes are in
`supervisor`, the management API is in `api`.
"""
