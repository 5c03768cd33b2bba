"""Agents among each other: the values that handlers see of it are in `peers`.

peer_requests  help and handoffs that tasks ask for, direct messages
peer_handlers  the agent's own handlers for what others ask, and what their ends mean
status         status reports, error reports, and direct messages
help_as_work   help as a task, for protocols without help

The messages are agentmsg's, the one protocol whose agents converse (`links.ProtocolCapabilities`).
"""
