"""Replies that mean harm: whatever a node sends, no exception leaves the strategy, no NaN enters the model, and no memory is taken for it.

FLTRUST_FUZZ_REPLIES=1000000 python -m pytest tests/test_flower_replies.py -k fuzzed      # instead of 20,000; about half an hour
"""

import os
import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

from fake_federation import MODEL, FakeGrid, as_record, honest, reply_with, root, round_of, strategy_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.typing import ConfigRecordValues
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from test_flower_strategy import BAD

from fltrust.flower.layout import Layout
from fltrust.flower.replies import Limits, ReplyError, Sent, decode, read
from fltrust.flower.verdicts import REASONS, plain
from fltrust.rules import FLTrust, Median, Rule

pytestmark = pytest.mark.usefixtures("quiet_flower")

REPLIES = int(os.environ.get("FLTRUST_FUZZ_REPLIES", "20000"))
AT_A_TIME = 10_000  # replies of one test: hypothesis remembers all it has tried, so a million have a hundred tests
HOSTILE, GOOD = range(1, 21), range(21, 24)  # the nodes of a fuzzed round
LAYOUT = Layout.of(MODEL, ())
STATUS = Path("/proc/self/status")


def sent_message(t: int = 1) -> Message:
    content = RecordDict({"arrays": as_record(), "config": ConfigRecord({"server-round": t})})
    message = Message(content, 1, "train", group_id=str(t))
    message.metadata.__dict__["_message_id"] = "m"
    return message


def read_it(reply: Message, **limits: Any) -> Sent:
    return read(reply, 1, LAYOUT, MODEL, Limits(**limits), torch.empty(LAYOUT.d))


def reason_of(reply: Message, **limits: object) -> str:
    with pytest.raises(ReplyError) as problem:
        read_it(reply, **limits)
    return problem.value.reason


# ---------------------------------------------------------------- one by one


class Bomb:
    went_off = False

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return Bomb.explode, ()

    @staticmethod
    def explode() -> None:
        Bomb.went_off = True


@pytest.mark.parametrize("stated", ["float32", "object", "|O", "O"])
def test_nothing_is_unpickled(stated: str) -> None:
    file = BytesIO()
    np.save(file, np.array([Bomb(), Bomb(), Bomb()], dtype=object), allow_pickle=True)
    reply = honest(1, sent_message())
    reply.content.array_records["arrays"]["bias"] = Array(dtype=stated, shape=(3,), stype="numpy.ndarray", data=file.getvalue())
    assert reason_of(reply) == ("encoding" if stated == "float32" else "dtype")
    assert not Bomb.went_off


def npy(header: str, numbers: bytes = bytes(12), version: bytes = b"\x01\x00") -> bytes:
    text = header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + numbers


GOOD_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"


@pytest.mark.parametrize(
    "data",
    [
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10**12,), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"),
        npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }"),
        npy("(" * 5000 + ")" * 5000),
        npy("__import__('os').abort()"),
        npy(GOOD_HEADER, version=b"\x02\x00"),
        npy(GOOD_HEADER, version=b"\xff\xff"),
        npy(GOOD_HEADER, bytes(11)),
        npy(GOOD_HEADER, bytes(13)),
        npy(GOOD_HEADER)[:20],
        b"\x93NUMPY\x01\x00\xff\xff" + GOOD_HEADER.encode(),
        b"PK\x03\x04" + bytes(100),
        b"",
        b"\x93NUMPY",
    ],
)
def test_headers_are_compared_not_parsed(data: bytes) -> None:
    with pytest.raises(ReplyError) as problem:
        decode(Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=data), "bias", LAYOUT)
    assert problem.value.reason == "encoding"


def test_what_numpy_saves_is_read() -> None:
    for name, array in MODEL.items():
        for same in (array, np.asfortranarray(array), np.repeat(array, 2, axis=0)[::2]):
            decoded = decode(Array(same), name, LAYOUT)
            np.testing.assert_array_equal(decoded, array)
    spaced = npy("  " + GOOD_HEADER + " " * 700 + "\n", np.arange(3, dtype=np.float32).tobytes())
    sent = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=spaced)
    assert decode(sent, "bias", LAYOUT).tolist() == sent.numpy().tolist() == [0, 1, 2]


def test_the_limits_are_limits() -> None:
    reply = honest(1, sent_message())
    read_it(reply, most_bytes=1000)
    assert reason_of(reply, most_bytes=300) == "too-large"
    assert reason_of(reply, most_value=0.5) == "value"
    assert reason_of(reply_with(sent_message(), MODEL, 10), most_examples=5, weighted_by_key="other") == "examples"
    assert read_it(reply, most_examples=5).examples == 5


def test_a_round_may_be_told_in_any_way_but_must_be_right() -> None:
    for right in (MetricRecord({"server-round": 1}), MetricRecord({"server-round": 1.0}), ConfigRecord({"server-round": "1"})):
        reply = honest(1, sent_message())
        reply.content["more"] = right
        read_it(reply)
    for wrong in (True, "one", b"1", [1], 2):
        reply = honest(1, sent_message())
        reply.content["more"] = ConfigRecord({"server-round": wrong})
        assert reason_of(reply) == "other-round"


def test_what_no_check_foresaw_is_a_reason_too() -> None:
    class Odd:
        def has_error(self) -> bool:
            raise SystemError("\x1b[31m" + "x" * 10_000)

    with pytest.raises(ReplyError) as problem:
        read_it(Odd())  # type: ignore[arg-type]
    assert problem.value.reason == "unreadable"
    assert len(problem.value.detail) <= 200
    assert problem.value.detail.isprintable()


@given(st.text(), st.integers(4, 300))
def test_what_others_wrote_becomes_short_printable_ascii(text: str, most: int) -> None:
    shown = plain(text, most)
    assert shown.isascii()
    assert shown == "" or shown.isprintable()
    assert len(shown) <= most
    if text.isascii() and text.isprintable() and "\\" not in text and len(text) <= most:
        assert shown == text


# ---------------------------------------------------------------- by the thousand


names = st.one_of(st.sampled_from(["weight", "bias", "arrays", "metrics", "num-examples", "server-round", ""]), st.text(max_size=12))
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(width=64), st.sampled_from([0, 1, -1, 1e308, 10**9]))
shapes = st.lists(st.one_of(st.integers(-2, 5), st.sampled_from([2**31, 2**62, 10**30])), max_size=5).map(tuple)
dtypes = st.sampled_from(["float32", "float64", "float16", "object", "complex64", "bool", "<f4", ">f4", "|O", "", "V4", "int32"])
floats = st.one_of(
    st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e38, -1e38, 3.4e38, 1e-45, 1e9, 1.0, -1.0]),
    st.floats(width=32),
    st.floats(-2, 2, width=32),
)


@st.composite
def numbered(draw: st.DrawFn, name: str) -> Array:
    """The right shape and dtype, any numbers."""
    after = MODEL[name] + np.float32(0.1)
    kind = draw(st.sampled_from(["bits", "one value", "one of them", "scaled"]))
    if kind == "bits":
        after = np.frombuffer(draw(st.binary(min_size=after.nbytes, max_size=after.nbytes)), np.float32).reshape(after.shape)
    elif kind == "one value":
        after = np.full_like(after, draw(floats))
    elif kind == "scaled":
        with np.errstate(all="ignore"):
            after = after * np.float32(draw(floats))
    else:
        after.flat[draw(st.integers(0, after.size - 1))] = draw(floats)
    return Array(after)


@st.composite
def damaged(draw: st.DrawFn, name: str) -> Array:
    """A good array with something about it changed."""
    array = Array(MODEL[name] + np.float32(0.1))
    what = draw(st.sampled_from(["dtype", "shape", "stype", "bytes", "cut", "flip", "header", "other"]))
    if what == "dtype":
        array.dtype = draw(st.one_of(dtypes, st.text(max_size=8)))
    elif what == "shape":
        array.shape = draw(shapes)
    elif what == "stype":
        array.stype = draw(st.one_of(st.sampled_from(["pickle", "numpy", ""]), st.text(max_size=8)))
    elif what == "bytes":
        array.data = draw(st.binary(max_size=200))
    elif what == "cut":
        array.data = array.data[: draw(st.integers(0, len(array.data)))]
    elif what == "flip":
        where, bit = draw(st.integers(0, len(array.data) - 1)), draw(st.integers(0, 7))
        array.data = array.data[:where] + bytes([array.data[where] ^ 1 << bit]) + array.data[where + 1 :]
    elif what == "header":
        array.data = npy(draw(st.text(max_size=80)), bytes(draw(st.integers(0, 64))))
    else:
        array = Array(np.zeros(draw(st.integers(0, 50)), draw(st.sampled_from(["f2", "f4", "f8", "i4", "c8", "?"]))))
    return array


metrics = st.dictionaries(names, st.one_of(numbers, st.lists(st.floats(), max_size=3), st.lists(st.integers(0, 9), max_size=3)), max_size=3)
configs: st.SearchStrategy[dict[str, ConfigRecordValues]] = st.dictionaries(
    names, st.one_of(numbers, st.text(max_size=8), st.binary(max_size=8), st.booleans()), max_size=3
)
any_array = st.one_of(numbered("weight"), numbered("bias"), damaged("weight"), damaged("bias"))
any_record = st.one_of(st.dictionaries(names, any_array, max_size=3).map(ArrayRecord), metrics.map(MetricRecord), configs.map(ConfigRecord))


@st.composite
def contents(draw: st.DrawFn) -> RecordDict:
    kind = draw(st.sampled_from(["numbers", "numbers", "damaged", "records", "names", "metrics"]))
    if kind == "records":
        return RecordDict(draw(st.dictionaries(names, any_record, max_size=3)))
    array = damaged if kind == "damaged" else numbered
    arrays = {name: draw(array(name)) for name in MODEL}
    if kind == "names":
        arrays = {draw(names): array for array in arrays.values()} | draw(st.dictionaries(names, any_array, max_size=2))
    content = RecordDict({"arrays": ArrayRecord(arrays)})
    if kind == "metrics":
        content[draw(names) or "m"] = MetricRecord(draw(metrics))
        content[draw(names) or "c"] = ConfigRecord(draw(configs))
    return content


@st.composite
def answers(draw: st.DrawFn) -> Callable[[Message], object]:
    """A function of the message that was sent: what comes back."""
    kind = draw(st.sampled_from(["content"] * 12 + ["error", "raises", "wire", "wire", "metadata", "several", "nothing"]))
    content = draw(contents()) if kind in ("content", "metadata", "several", "wire") else RecordDict()
    if kind == "error":
        error = Error(draw(st.integers(-5, 300)), draw(st.one_of(st.none(), st.text(max_size=50))))
        return lambda message: Message(error, reply_to=message)
    if kind == "raises":
        problem = draw(st.sampled_from([KeyError, ValueError, RecursionError, MemoryError, TypeError]))
        return lambda message: problem("\x1b")
    if kind == "wire":
        where, change = draw(st.integers(0, 10**6)), draw(st.integers(1, 255))
        return lambda message: over_the_wire(Message(content, reply_to=message), where, change)
    if kind == "metadata":
        field, value = draw(st.sampled_from(["_group_id", "_reply_to_message_id"])), draw(st.text(max_size=5))

        def altered(message: Message) -> Message:
            reply = Message(content, reply_to=message)
            reply.metadata.__dict__[field] = value
            return reply

        return altered
    if kind == "several":
        return lambda message: [Message(content, reply_to=message), honest(3, message)]
    if kind == "nothing":
        return lambda message: Message(RecordDict(), reply_to=message)
    return lambda message: Message(content, reply_to=message)


def over_the_wire(reply: Message, where: int, change: int) -> object:
    """As Flower's grid reads it, with one byte changed on the way."""
    try:
        objects = {key: found.deflate() for key, found in get_all_nested_objects(reply).items()}
        key = sorted(objects)[where % len(objects)]
        place = where % len(objects[key])
        objects[key] = objects[key][:place] + bytes([objects[key][place] ^ change]) + objects[key][place + 1 :]
        return inflate_object_from_contents(reply.object_id, objects)
    except Exception as problem:  # the grid raises it to the strategy
        return problem


def norm(arrays: dict[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(part.astype(np.float64)).sum() for part in arrays.values())))


counted = {"replies": 0, "used": 0, "rejected": 0}


@pytest.mark.slow
@pytest.mark.parametrize("rule", [FLTrust(), Median()], ids=str)
@pytest.mark.parametrize("part", range(-(-REPLIES // 2 // AT_A_TIME)))
@settings(max_examples=min(AT_A_TIME, REPLIES) // len(HOSTILE), database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(answers(), min_size=len(HOSTILE), max_size=len(HOSTILE)))
def test_fuzzed_replies_hurt_nobody_but_their_senders(part: int, rule: Rule, hostile: list[Callable[[Message], object]]) -> None:
    def clients(node: int, message: Message) -> object:
        return hostile[node - 1](message) if node in HOSTILE else honest(node, message)

    strategy = strategy_of(rule, most_value=1e6)
    result = strategy.start(FakeGrid(clients, [*HOSTILE, *GOOD]), as_record(), num_rounds=1, timeout=60)
    after = {name: array.numpy() for name, array in result.arrays.items()}
    assert all(np.isfinite(array).all() for array in after.values())
    entries = strategy._round.entries  # type: ignore[union-attr]
    assert all(entries[node].verdict == "used" for node in GOOD)
    assert all(entry.reason is None or entry.reason in REASONS for entry in entries.values())
    if rule == FLTrust():
        moved = norm({name: after[name] - MODEL[name] for name in after})
        assert moved <= norm(root(MODEL)) * 1.0001
    counted["replies"] += len(hostile)
    for verdict in ("used", "rejected"):
        counted[verdict] += sum(entries[node].verdict == verdict for node in HOSTILE)


def test_the_fuzzing_was_no_walk_in_the_park() -> None:
    if not counted["replies"]:
        pytest.skip("nothing was fuzzed")
    assert counted["replies"] >= REPLIES
    assert counted["used"] > 0.05 * REPLIES  # arrays of the right form get through all checks ...
    assert counted["rejected"] > 0.3 * REPLIES  # ... and most replies do not


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_thousands_of_bad_replies_leave_nothing_behind() -> None:
    kinds = [bad for _, bad in BAD.values()]

    def clients(node: int, message: Message) -> object:
        return kinds[node](node, message) if node < len(kinds) else honest(node, message)

    def megabytes() -> float:
        return next(float(line.split()[1]) / 1e3 for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))

    before = 0.0
    for i in range(60):
        strategy_of(most_value=1e6).start(FakeGrid(clients, range(len(kinds) + 3)), as_record(), num_rounds=1)
        before = megabytes() if i == 20 else before
    assert megabytes() < before + 10


@settings(max_examples=1500, database=None, suppress_health_check=list(HealthCheck))
@given(answers())
def test_a_reply_takes_no_memory_beyond_its_limit(answer: Callable[[Message], object]) -> None:
    """Whatever shapes and sizes a reply claims, reading it allocates less than the limit on its size."""
    reply = answer(sent_message())
    if not isinstance(reply, Message):
        return
    tracemalloc.start()
    try:
        read_it(reply, most_bytes=64_000)
    except ReplyError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64_000


def test_a_large_reply_is_refused_before_it_is_copied() -> None:
    arrays = {"weight": np.zeros((3, 4_000_000), np.float32), "bias": MODEL["bias"]}
    reply = reply_with(sent_message(), arrays)  # 48 MB
    del arrays
    tracemalloc.start()
    assert reason_of(reply) == "too-large"
    assert reason_of(reply, most_bytes=10**9) == "shape"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_rounds_are_read_as_the_nodes_were_asked() -> None:
    """The fuzzed federation itself learns, where nobody means harm."""
    strategy = strategy_of(FLTrust())
    grid = FakeGrid(honest, [*HOSTILE, *GOOD])
    strategy.start(grid, as_record(), num_rounds=2)
    assert {round_of(message) for message in grid.sent.values()} == {1, 2}
    assert strategy._round is not None
    assert {entry.verdict for entry in strategy._round.entries.values()} == {"used"}
