"""One file per mechanism by which a layer remembers; found by name, asked through `base`."""
