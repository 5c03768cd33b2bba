"""Agents among each other: the values that handlers see of it are in `peers`.

exchange   help asked for and given, tasks handed over, letters: both sides
listening  the agent's own handlers for them, and what their ends mean
bulletin   what an agent says of itself, and tells others directly
trouble    what went wrong, as a report
helping    help as work, where a protocol has no word for it

The words are agentmsg's, the one protocol whose agents converse (`links.ProtocolCapabilities`).
"""
