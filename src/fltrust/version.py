"""The version, alone in a file so that `fltrust --version` imports nothing heavy."""

__version__ = "0.1.0"
