"""Running: one loop for every run, what watches it, and many runs at a time."""
