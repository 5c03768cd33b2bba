"""Chiffon 1.0: an orchestrator asks agents for work, in one JSON envelope with four payloads.

types        the words, as values           errors       the codes 5001-5999 and their contexts
codec        bytes to values and back       versions     which version two parties speak
chunks       outputs too long for a message state        the life of one exchange, as a table
connection   one end of one link            idempotency  what an agent remembers of requests
"""
