"""A2acp's endpoints on a real hub: the standard library, `websockets`, PyJWT and `cryptography`, nothing of ours at the
agents' end.
"""
