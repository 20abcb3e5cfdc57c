"""One file per model family that is served, found by its name."""
