"""Anchor, this package's own rule, in one file and without the package: the obvious loops in NumPy.

    python examples/anchor_in_one_file.py

Ten clients know roughly where a valley lies and the server knows it even less exactly; four of the clients send the opposite, at any
length. Nothing here is fast. The package computes the same numbers, and its tests check that it does.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]  # a row per client


class Anchor:
    """A rule with memory: one running mean per client, by the client's id."""

    def __init__(self, momentum: float = 0.9, voice: float = 1.0, limit: float = 30.0, directions: int = 0) -> None:
        self.momentum, self.voice, self.limit, self.directions = momentum, voice, limit, directions
        self.sums: dict[int, Vector] = {}
        self.rounds: dict[int, int] = {}

    def mean_of(self, client: int, update: Vector, longest: float) -> Vector:
        """The running mean of what a client has sent: an update weighs `momentum` times as much as the one after it."""
        update = update * min(1.0, longest / float(np.linalg.norm(update)))
        self.sums[client] = self.momentum * self.sums.get(client, np.zeros_like(update)) + (1 - self.momentum) * update
        self.rounds[client] = self.rounds.get(client, 0) + 1
        return self.sums[client] / (1 - self.momentum ** self.rounds[client])

    def levelled(self, rows: Matrix) -> Vector:
        """The mean of the rows; along the directions in which they differ most, of rows brought to one deviation from the median."""
        mean = rows.mean(axis=0)
        centred = rows - mean
        covariance = centred @ centred.T  # of n rows with each other: its eigenvectors say where each row stands
        for _ in range(self.directions):
            if covariance.diagonal().max() <= 1e-10:
                break  # what is left is rounding
            power = covariance
            for _ in range(8):  # its 256th power: what is left is the direction of most variance
                power = power / power.diagonal().max()
                power = power @ power
            places = power[:, np.argmax(np.diag(power))]
            places = places / np.linalg.norm(places)
            middle = np.median(places)
            deviation = 1.4826 * np.median(np.abs(places - middle))
            moved = np.clip(places, middle - deviation, middle + deviation).mean()
            mean = mean + moved * centred.T @ places
            others = np.eye(len(rows)) - np.outer(places, places)  # leaves what stands at right angles to it
            covariance = others @ covariance @ others
        return np.asarray(mean)

    def aggregate(self, updates: dict[int, Vector], root_update: Vector) -> Vector:
        usable = {client: update for client, update in updates.items() if np.isfinite(update).all() and update.any()}
        middle = float(np.median([np.linalg.norm(update) for update in usable.values()])) if usable else 0.0
        longest = middle / (1 - self.momentum) if self.momentum else np.inf  # so that one lie is soon forgotten
        means = [self.mean_of(client, update, longest) for client, update in usable.items()]
        means = [mean for mean in means if mean.any()]
        root_length = float(np.linalg.norm(root_update))
        if not means or not np.isfinite(root_length) or root_length == 0:
            return np.zeros_like(root_update)  # nobody to listen to: the model stays as it is
        lengths = sorted(float(np.linalg.norm(mean)) for mean in means)
        length = min(float(np.median(lengths)), self.limit * root_length)
        everybody = self.levelled(np.stack([mean / np.linalg.norm(mean) for mean in means])) * length
        reach = lengths[3 * (len(lengths) - 1) // 4]
        return np.asarray(everybody + self.voice * root_update * min(1.0, reach / root_length))


def main() -> None:
    rng = np.random.default_rng(0)
    valley, model, rule = np.full(20, 3.0), np.zeros(20), Anchor()
    places = valley + rng.normal(0, 1, (10, 20))  # where each client's own valley lies
    root_place = valley + rng.normal(0, 0.5, 20)
    for t in range(61):
        if t % 20 == 0:
            print(f"round {t}: {np.linalg.norm(model - valley):.2f} from the valley")
        updates = {client: place - model + rng.normal(0, 1, 20) for client, place in enumerate(places)}
        updates |= {client: -1000 * updates[client] for client in range(4)}  # as long as they like
        model = model + 0.1 * rule.aggregate(updates, root_place - model)


if __name__ == "__main__":
    main()
