"""FLTrust: federated learning with clients that cannot be trusted."""
