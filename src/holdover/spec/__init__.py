"""What a token costs and how long it stays: the one description that everything else reads."""
