"""Twelve checks against other authors' numbers: their settings, also where these are odd, and ours beside theirs."""
