"""What a codec costs in quality, measured through the cache that serves."""
