"""Chiffon 1.0: an orchestrator asks agents for work, in one JSON envelope with four payloads.

types        the messages, as values        codec        bytes to values and back; which version two parties speak
chunks       outputs too long for a message errors       the codes 5001-5999 and their contexts
"""
