"""What a user can get wrong. The command line shows these as one line and exits with 2."""


class InputError(ValueError):
    """A value, name or file that a user gave and that cannot be used; the message says which, and what would do."""
