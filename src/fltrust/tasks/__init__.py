"""Tasks: data with owners and a model; how it is split, batched and built."""
