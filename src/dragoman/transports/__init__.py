"""Bytes in, bytes out: the hub's doors. Nothing here decides anything about a task.

server        uvicorn, started and drained by us          asgi       the few hot paths, before everything else
limits        what slow and greedy clients may do         websocket  frames straight to whoever listens
desk          chiffon's doors: who, what, and saying no   driver     the pump behind every ordered link
ws_door       the life of every WebSocket link            http_door  long polls, acknowledgments, saying no
chiffon_http  requests, long polls, acknowledgments       chiffon_ws chiffon over one WebSocket
push          envelopes posted to callback URLs           refusals   what was refused before it was a command
api           the management API                          operations health, metrics, the dashboard
"""
