"""Forge's doors: the words on a link, whatever carries it, and the WebSocket for agents elsewhere.

desk       what all links share: who may talk how fast, where logs go, what is published
tongue     a line or frame as what it means; an outgoing message, an outcome, a refusal as lines or frames
reading    the requests that only read
ws         `/forge/ws`

Child processes are in `supervisor`; they use the session as well.
"""
