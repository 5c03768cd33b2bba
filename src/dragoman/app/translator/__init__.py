"""The translator: one message in, and the same message as it arrives in another protocol. No port, no file.

translator.py    a hub in memory with two agents: what one sends, and what the other receives
adapter.py       what the translator needs of a protocol; chiffon.py, coven.py, forge.py, agentmsg.py, a2acp.py: the
                 five, each by its own codec and binding, imported where it is needed
examples.py      a message of each kind in each protocol
"""
