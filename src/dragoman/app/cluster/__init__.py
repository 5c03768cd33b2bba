"""Several hubs over one PostgreSQL: one leads, the others follow it and take connections all the same."""
