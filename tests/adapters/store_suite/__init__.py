"""What every store promises, on every store: the promises of `core.ports`, one test each.

The memory store is the fake the core is tested with, so it must pass what the real ones pass; the SQLite store
runs with its hot cache and without it, and nobody may be able to tell.
"""
