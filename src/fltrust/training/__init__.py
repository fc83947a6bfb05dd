"""Training: what clients and the server compute in a round."""
