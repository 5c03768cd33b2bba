"""What clients have in common, whatever they speak.

following  calls: how one goes, and how a client keeps them
online     a link of their own that is dialled anew            patience  a hub that is gone for a moment is waited for
api        the client of the management API

Those that keep a link (chiffon, forge, agentmsg, a2acp) stand on the first two, those that ask and are answered (the
management API, coven, the shared state) on patience.
"""
