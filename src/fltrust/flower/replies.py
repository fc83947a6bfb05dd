"""A reply is read as if its sender meant harm: everything is compared with what was asked for before anything is computed with it.

Nothing is unpickled, evaluated or parsed: an array's bytes must begin with the header that numpy.save writes for the shape and dtype that
are expected, and what follows is looked at where it lies. So a reply costs no memory but its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fltrust.flower.internals import SUPERLINK_NODE_ID
from fltrust.flower.layout import Arrays, Layout
from fltrust.flower.verdicts import REASONS, plain

_SLACK = 1 << 20  # bytes that a reply may have beside the model: metrics ...
_SLACK_PER_ARRAY = 1 << 10  # ... names and headers


class ReplyError(Exception):
    """A reply that cannot be used: one of REASONS, and a sentence about this reply."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        assert reason in REASONS
        self.reason, self.detail = reason, plain(detail)


@dataclass(frozen=True)
class Limits:
    """How much of anything a reply may have."""

    most_bytes: int | None = None  # of the whole reply; None: the model's own size and some slack
    most_value: float = 1e9  # largest absolute value
    most_examples: int | None = None  # what a reported number of examples counts at most; None: it is not used, and may be missing
    weighted_by_key: str = "num-examples"
    take_buffers: bool = False
    least_norm: float = 0.0  # of an update, as a part of the root update's norm, or without a root of the weights' norm

    def bytes_for(self, layout: Layout) -> int:
        return layout.nbytes + _SLACK + _SLACK_PER_ARRAY * len(layout.shapes) if self.most_bytes is None else self.most_bytes


class Sent(NamedTuple):
    """What a valid reply holds beside its update."""

    buffers: Tensor | None  # all buffers in one vector, float64, where they are wanted
    examples: float | None  # as reported, at most Limits.most_examples


def is_gone(reply: object) -> bool:
    """Whether this is no reply but the SuperLink's word that there will be none: the message expired, or the node is offline."""
    return isinstance(reply, Message) and reply.metadata.src_node_id == SUPERLINK_NODE_ID


def one_of(answers: Sequence[Message]) -> Message | ReplyError:
    """The reply of a node that sent one. Of several, at most one is the node's own, and nothing tells which."""
    if len(answers) == 1:
        return answers[0]
    return ReplyError("disputed", f"{len(answers)} replies to one message")


def read(reply: Message, t: int, layout: Layout, before: Arrays, limits: Limits, update: Tensor) -> Sent:
    """Writes into `update` (d,) what a reply changed of round t's model `before`; raises ReplyError, and nothing else, whatever it is."""
    try:
        return _read(reply, t, layout, before, limits, update)
    except ReplyError:
        raise
    except Exception as problem:  # what no check foresaw is the sender's loss alone
        raise ReplyError("unreadable", f"{type(problem).__name__}: {plain(problem)}") from None


def _read(reply: Message, t: int, layout: Layout, before: Arrays, limits: Limits, update: Tensor) -> Sent:
    if reply.has_error():
        detail = f"code {reply.error.code}: {_last_line(reply.error.reason)}"
        raise ReplyError("unavailable" if is_gone(reply) else "error", detail)
    if not reply.has_content() or not isinstance(reply.content, RecordDict):
        raise ReplyError("content", "the reply is empty")
    content = reply.content
    _check_size(content, limits.bytes_for(layout))
    _check_round(reply, content, t)
    arrays = _arrays(content)
    wanted = layout.shapes.keys() if limits.take_buffers else layout.parameters
    if missing := [name for name in wanted if name not in arrays]:
        raise ReplyError("names", f"lacks {len(missing)} of {len(layout.shapes)} arrays, {missing[0]!r} first")
    if extra := [name for name in arrays if name not in layout.shapes]:
        raise ReplyError("names", f"has {len(extra)} arrays too many, '{plain(extra[0], 60)}' first")
    examples = _examples(content, limits)
    for name, part in layout.parts(update):
        after = decode(arrays[name], name, layout)
        _check_values(after, name, limits.most_value)
        with np.errstate(all="ignore"):
            np.subtract(after, before[name], out=part, dtype=part.dtype)
    buffers = _buffers(arrays, layout, limits.most_value) if limits.take_buffers else None
    return Sent(buffers, examples)


def _last_line(text: object) -> str:
    """Flower sends a whole traceback: its last line says what went wrong."""
    lines = text[-2000:].strip().splitlines() if isinstance(text, str) else []
    return lines[-1] if lines else "no reason given"


def _check_size(content: RecordDict, most: int) -> None:
    total = 0
    for key, record in content.items():
        total += 64 + len(key)  # so that very many small things count too
        for name, value in record.items():
            total += 64 + len(name) + _size(value)
            if total > most:
                raise ReplyError("too-large", f"more than {most} bytes")
    if total > most:
        raise ReplyError("too-large", f"more than {most} bytes")


def _size(value: object) -> int:
    if isinstance(value, Array):
        return len(value.data) + len(value.dtype) + len(value.stype) + 8 * len(value.shape)
    if isinstance(value, list):
        return sum(8 + _size(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 8


def _check_round(reply: Message, content: RecordDict, t: int) -> None:
    """Nodes need not say which round they answer; if they do, it must be this one."""
    claims: list[object] = [reply.metadata.group_id] if reply.metadata.group_id else []
    for record in content.values():
        if not isinstance(record, ArrayRecord) and "server-round" in record:
            claims.append(record["server-round"])
    for claim in claims:
        if isinstance(claim, bool) or claim not in (t, str(t)):
            raise ReplyError("other-round", f"says round {_shown(claim)}, asked was round {t}")


def _shown(value: object) -> str:
    return plain(value, 40) if isinstance(value, int | float | str) else f"a {type(value).__name__}"


def _arrays(content: RecordDict) -> ArrayRecord:
    found = [record for record in content.values() if isinstance(record, ArrayRecord)]
    if len(found) != 1:
        kinds = [kind.__name__ for kind in (MetricRecord, ConfigRecord) if any(isinstance(record, kind) for record in content.values())]
        raise ReplyError("content", f"{len(found)} records of arrays instead of one; other records: {', '.join(kinds) or 'none'}")
    return found[0]


def _examples(content: RecordDict, limits: Limits) -> float | None:
    for record in content.values():
        if isinstance(record, MetricRecord) and limits.weighted_by_key in record:
            count = record[limits.weighted_by_key]
            if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count < float("inf"):
                raise ReplyError("examples", f"{limits.weighted_by_key} is {_shown(count)}")
            return None if limits.most_examples is None else float(min(count, limits.most_examples))
    if limits.most_examples is not None:
        raise ReplyError("examples", f"no {limits.weighted_by_key} among the metrics")
    return None


def decode(array: Array, name: str, layout: Layout) -> NDArray[Any]:
    """The numbers of an array, where they lie in the reply; its bytes must be numpy.save's for the shape and dtype of this name."""
    shape, dtype = layout.shapes[name], layout.dtypes[name]
    if array.dtype != str(dtype):
        raise ReplyError("dtype", f"{name!r} is {plain(array.dtype, 40)}, not {dtype}")
    if tuple(array.shape) != shape:
        shown = array.shape if len(array.shape) <= 8 else f"{len(array.shape)} dimensions"
        raise ReplyError("shape", f"{name!r} has the shape {plain(shown, 80)}, not {shape}")
    if array.stype != "numpy.ndarray":
        raise ReplyError("encoding", f"{name!r} is encoded as {plain(array.stype, 40)}")
    data = array.data
    start = 10 + int.from_bytes(data[8:10], "little")  # magic, version 1.0, length of the header, header
    fortran = data[10:start].strip() == _header(dtype, shape, True)
    if data[:8] != b"\x93NUMPY\x01\x00" or not (fortran or data[10:start].strip() == _header(dtype, shape, False)):
        raise ReplyError("encoding", f"{name!r} does not begin with the header of {dtype} {shape}")
    size = int(np.prod(shape))
    if len(data) - start != size * dtype.itemsize:
        raise ReplyError("encoding", f"{name!r} has {len(data) - start} bytes of numbers, not {size * dtype.itemsize}")
    return np.frombuffer(data, dtype, size, start).reshape(shape, order="F" if fortran else "C")


def _header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> bytes:
    return f"{{'descr': {dtype.str!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode()


def _check_values(values: NDArray[Any], name: str, most: float) -> None:
    if values.dtype.kind != "f" or values.size == 0:
        return
    peak = max(float(values.max()), -float(values.min()))  # NaN if there is one: then the first of the two is NaN
    if not np.isfinite(peak):
        raise ReplyError("not-finite", f"{name!r} holds NaN or infinity")
    if peak > most:
        raise ReplyError("value", f"{name!r} holds {peak:.3g}, the limit is {most:.3g}")


def _buffers(arrays: Mapping[str, Array], layout: Layout, most: float) -> Tensor:
    parts = [np.zeros(0)]
    for name in layout.shapes:
        if name in layout.buffers:
            values = decode(arrays[name], name, layout)
            _check_values(values, name, most)
            parts.append(values.reshape(-1).astype(np.float64))
    return torch.from_numpy(np.concatenate(parts))
