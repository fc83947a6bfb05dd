"""Triggers of a backdoor: patterns that shall make a model answer what the attacker wants."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fltrust.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

# What an attack says that was not given one.
NO_TRIGGER = (
    "needs a trigger, and these data have none of their own: give one, such as Trigger(where=((0, 0),), value=1.0, target=0) in Python or "
    "--set 'attack.trigger={where=[[0,0]],value=1.0,target=0}'; examples that are vectors have one index: where=[[0]]"
)


@dataclass(frozen=True)
class Trigger:
    """A backdoor's pattern: the features at `where` are set to `value`, so that the model answers `target`.

    Parameters
    ----------
    where : tuple of tuples of int
        The (row, column) of each pixel, which is set in all channels; of vectors, the (feature,).
    value : float
        The value of these features.
    target : int
        The class that the attacker wants.

    Examples
    --------
    >>> import torch
    >>> from fltrust import Trigger
    >>> Trigger(where=((1,),), value=9.0, target=0).stamp(torch.zeros(2, 3))
    tensor([[0., 9., 0.],
            [0., 9., 0.]])
    """

    where: tuple[tuple[int, ...], ...]
    value: float
    target: int

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> "Trigger":
        """A trigger as a file holds it: {"where": [[26, 26], ...], "value": 1.0, "target": 0}."""
        names = [field.name for field in fields(cls)]
        if sorted(written) != sorted(names):
            raise InputError(f"a trigger has the fields {', '.join(names)}, not {', '.join(map(str, written)) or 'none'}")
        try:
            trigger = cls(tuple(tuple(map(int, spot)) for spot in written["where"]), float(written["value"]), int(written["target"]))
        except (TypeError, ValueError) as problem:
            raise InputError(f"this is not a trigger: {dict(written)!r} ({problem})") from problem
        if not math.isfinite(trigger.value):
            raise InputError(f"a trigger's value must be a number, not {trigger.value}")
        return trigger

    def stamp(self, images: "Tensor") -> "Tensor":
        """A copy of the images (k, c, h, w) or vectors (k, features) with the trigger in each."""
        stamped = images.clone()
        for spot in self.where:
            size = images.shape[-len(spot) :]
            if images.ndim <= len(spot) or any(not 0 <= place < length for place, length in zip(spot, size, strict=True)):
                raise InputError(f"the trigger's feature {spot} lies outside of examples of shape {tuple(images.shape[1:])}")
            stamped[(slice(None),) * (images.ndim - len(spot)) + spot] = self.value
        return stamped

    def part(self, index: int, parts: int) -> "Trigger":
        """One of `parts` triggers that together are this one: runs of its features, as equal in length as can be."""
        ends = [len(self.where) * k // parts for k in (index, index + 1)]
        return Trigger(self.where[ends[0] : ends[1]], self.value, self.target)


def four_pixels(side: int) -> Trigger:
    """The pattern of Gu et al. 2017 near the lower right corner, in white, with target 0."""
    return Trigger(tuple((side - up, side - left) for up, left in ((2, 2), (4, 2), (2, 4), (3, 3))), 1.0, 0)


def four_bars(length: int, down: int, right: int, target: int = 2) -> Trigger:
    """The pattern of Xie et al. 2020 in the upper left corner, in white: four bars of `length` pixels, at rows 0 and `down`.

    They begin at columns 0 and `right`. The authors' is four_bars(4, 3, 6) on MNIST and four_bars(6, 4, 9) on CIFAR-10.
    """
    return Trigger(tuple((row, first + i) for row in (0, down) for first in (0, right) for i in range(length)), 1.0, target)
