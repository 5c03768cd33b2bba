"""A protocol's messages and what the hub knows of their sender and task ⇄ the hub's commands and outgoing messages.

What a wire type means is in `protocols/X/mapping`; a binding adds the principal, the task, digests and deadlines. Pure:
values and `now` come in, values go out. One binding for each protocol; none of them knows another.
"""
