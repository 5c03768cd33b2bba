"""What callers and agents agreed on, as far as other decisions must hold them to it."""
