"""JSON Schema as values: compiled once and bounded, and whether one schema takes all that another one allows."""
