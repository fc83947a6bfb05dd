"""The version, alone in a file so that `fltrust --version` imports nothing heavy."""

__version__ = "0.2.0.dev0"
