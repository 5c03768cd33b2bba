"""PostgreSQL: the lease, the store under faults, files."""
