"""A store that several machines share: PostgreSQL, with one hub that leads and commits, fenced by an epoch."""
