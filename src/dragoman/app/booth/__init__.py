"""The interpreter's booth: one message in, and the same message as it arrives in another protocol. No port, no file.

interpreter.py   a hub in memory with two agents, and what one says that the other hears
tongue.py        what the booth asks of a protocol; chiffon.py, coven.py, forge.py, agentmsg.py, a2acp.py: the five,
                 each by its own codec and binding, imported where it is spoken
examples.py      a message of each kind in each protocol
"""
