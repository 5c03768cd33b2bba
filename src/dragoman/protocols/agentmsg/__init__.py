"""Agentmsg: agents hand tasks to each other, help each other, and share state, with a guarantee for each priority.

records      what messages speak of: tasks, agents, errors, shared state
types        the message and its payloads   errors       the eight error types, and a refusal as a report
codec        bytes to values and back       agreement    what is said twice in one message must agree
routing      priorities and guarantees      retry        when a message is sent again
state        one message's life, both ends  connection   one end of one link
events       what a connection tells
"""
