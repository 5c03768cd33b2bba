"""What agents share: versioned entities, the policy, and what may be spent."""
