"""Rules that need only the rows' inner products: each returns a weighted mean of the rows."""

from typing import ClassVar

from torch import Tensor

from fltrust.errors import InputError
from fltrust.rules.pairs import inner_products
from fltrust.rules.rows import combined, measure
from fltrust.rules.rule import Aggregate, Received, Rule


class GramRule(Rule):
    """A rule whose shares follow from the rows' inner products (their Gram matrix) alone. It defines `weigh`.

    One matrix serves many questions: a mixing of the rows before the rule (`PreAggregation`) changes the matrix, not the rows.
    """

    needs_rows: ClassVar[bool] = False  # for these parameters the matrix is not enough: whoever mixes rows must mix them all

    def weigh(self, products: Tensor, usable: Tensor) -> Tensor:
        """The shares (.., n) in float64, from inner products (.., n, n) as from `pairs.inner_products`; 0 where not usable (.., n).

        Any leading dimensions: a batch of matrices gives a batch of shares. The units of the products do not matter.
        """
        raise InputError(f"{type(self).__name__} must define weigh(products, usable)")

    def aggregate(self, received: Received) -> Aggregate:
        updates = received.updates
        rows = measure(updates)
        shares = self.weigh(inner_products(updates, rows), rows.usable)
        return Aggregate(combined(updates, rows, shares), shares.to(updates.dtype))
