"""The translator: one message in, and the same message as it arrives in another protocol. No port, no file.

translator   decode with one, let a hub in memory decide, encode with the other
adapters     what that needs of each protocol            examples   a message of each kind in each protocol
"""
