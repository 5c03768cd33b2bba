"""What two agents agreed on, and that both are held to it, whatever they speak."""
