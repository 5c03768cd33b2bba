"""Where the hub's rows live. Every store here passes the same suite, `tests/adapters/test_store_suite.py`."""
