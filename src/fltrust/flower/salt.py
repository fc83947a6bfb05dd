"""The global arrays as they are sent: the same numbers in bytes that nobody can predict.

Flower stores messages in pieces that are named by their hash, and believes whoever names a piece first about what is inside. A node that
can predict a piece of the next message (an array that stays as it is, all arrays after a round that kept the model) can name it first, with
nonsense inside: then no node can read the message. So each array gets random blanks at the end of its header, where NumPy ignores them.
An array of more than 5 MiB is several pieces, and only the first of them holds the header.
"""

import secrets

from flwr.app import Array, ArrayRecord

_BITS = 128
_BLANKS = b" \t"


def salted(arrays: ArrayRecord) -> ArrayRecord:
    return ArrayRecord({name: _salted(array) for name, array in arrays.items()})


def _salted(array: Array) -> Array:
    """An array in the format of numpy.save, version 1.0: magic, version, length of the header, header, numbers."""
    data = array.data
    if data[:8] != b"\x93NUMPY\x01\x00":
        return array
    start = 10 + int.from_bytes(data[8:10], "little")
    header = data[10:start].rstrip()
    blanks = _BITS + -(10 + len(header) + _BITS + 1) % 64  # NumPy aligns the numbers to 64 bytes
    salt = secrets.randbits(blanks)
    header += bytes(_BLANKS[salt >> i & 1] for i in range(blanks)) + b"\n"
    return Array(
        array.dtype, array.shape, array.stype, b"".join([data[:8], len(header).to_bytes(2, "little"), header, memoryview(data)[start:]])
    )
