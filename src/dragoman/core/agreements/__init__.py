"""What callers and agents agreed on, as far as other decisions must enforce it."""
