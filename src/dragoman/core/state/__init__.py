"""The shared state: versioned entities that agents read, watch and write, and the policy."""
