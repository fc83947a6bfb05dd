"""What a user can get wrong. The command line shows these as one line and exits with 2."""


class InputError(ValueError):
    """A value, name or file from the user that cannot be used. The message says which, and what would work.

    Examples
    --------
    >>> from fltrust import Krum
    >>> Krum(tolerate=-1)
    Traceback (most recent call last):
        ...
    fltrust.errors.InputError: Krum cannot tolerate -1 clients: give 0 or more
    """


def printable(text: str) -> str:
    """Text for a terminal. Others chose the names in files: a control character could colour, hide or turn what stands beside it."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
