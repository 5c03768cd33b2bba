"""The core: the hub's model, its decisions, and the promises that it asks of its surroundings.

Nothing in here reads a clock, a random source, a socket or a database. A decision takes values and a `Moment` and
leaves changes in a unit of work; `core.hub` has the table from commands to decisions.
"""
