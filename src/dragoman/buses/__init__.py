"""What carries traffic that nobody keeps: wake-ups, presence, what agents publish to each other. At most once."""
