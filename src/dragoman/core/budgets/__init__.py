"""What tasks and agents may use: amounts that are set aside, spent and given back."""
