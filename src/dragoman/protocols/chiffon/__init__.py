"""Chiffon 1.0: an orchestrator asks agents for work, in one JSON envelope with four payloads.

types        the messages, as values        errors       the codes 5001-5999 and their contexts
codec        bytes to values and back       versions     which version two parties speak
chunks       outputs too long for a message
"""
