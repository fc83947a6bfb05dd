"""A red team: find the share of malicious clients that breaks a rule on one's own task, and what would help."""
