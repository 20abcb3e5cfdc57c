"""Which layers a model has: from config.json or a GGUF header to `Geometry`. Imports no torch."""
