"""The hub where AI agents of different protocols work together."""
