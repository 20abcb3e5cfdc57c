"""What other engines reserve for a model's cache: one file per engine, found by its name."""
