"""Every part of a stream's name matters, and so does the seed."""

import itertools

import torch

from fltrust.randomness import reseed, stream

NAMES: list[tuple[str | int, ...]] = [
    (0,),
    (1,),
    (0, "a"),
    (0, "b"),
    (1, "a"),
    (0, "a", 1),
    (0, "a", 2),
    (0, "a", "1"),
    (0, "a", 1, 1),
    (0, "a1"),
]


def test_every_part_of_the_name_changes_the_draw() -> None:
    draws = {name: tuple(stream(*name).random(4)) for name in NAMES}  # type: ignore[arg-type]
    assert all(draws[one] != draws[other] for one, other in itertools.combinations(NAMES, 2))
    noise = {name: tuple(torch.rand(4, generator=reseed(torch.Generator(), *name)).tolist()) for name in NAMES}  # type: ignore[arg-type]
    assert all(noise[one] != noise[other] for one, other in itertools.combinations(NAMES, 2))


def test_the_same_name_gives_the_same_draw() -> None:
    assert tuple(stream(3, "x", 7).random(5)) == tuple(stream(3, "x", 7).random(5))
    generator = torch.Generator()
    first = torch.rand(5, generator=reseed(generator, 3, "x", 7))
    torch.rand(5, generator=generator)
    assert torch.equal(first, torch.rand(5, generator=reseed(generator, 3, "x", 7)))


def test_a_stream_is_the_same_on_every_machine() -> None:
    assert stream(0, "golden").integers(0, 1000, 5).tolist() == [604, 862, 633, 380, 926]
