"""Where the hub's rows live. Every store here passes the same suite, `tests/adapters/store_suite`."""
