"""Agentmsg: agents hand tasks to each other, help each other, and share state, with a guarantee for each priority.

types, records  the message, its payloads and their parts     routing     priorities, guarantees, retries
codec           bytes ⇄ messages                              errors      the eight error types; faults ⇄ reports
mapping         payloads ⇄ the hub's own messages             connection  one end of a connection, in either role
"""
