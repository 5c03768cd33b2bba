"""Who may come in, and where we may go: adapters around well-kept libraries. No decisions about tasks live here."""
