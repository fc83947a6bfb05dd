"""The peers: what they are called, in which version they were tried, and how they are installed."""

from dataclasses import dataclass
from importlib import import_module

from .comparison import Comparison
from .packages import installed


@dataclass(frozen=True)
class Peer:
    """A package that has rules of ours. `module` is the file of this directory that calls it."""

    label: str
    distribution: str
    version: str
    module: str

    @property
    def there(self) -> bool:
        """Whether it is installed, in the version that the page speaks of."""
        return installed(self.distribution) == self.version

    def comparisons(self) -> list[Comparison]:
        """Rules, then attacks: those that this package has too."""
        loaded = import_module(f"{__package__}.{self.module}")
        return [comparison for comparison in [*loaded.COMPARISONS, *loaded.ATTACKS] if comparison.there]

    def key(self, comparison: Comparison) -> str:
        return f"{self.module}: {comparison.theirs}"


PEERS = [
    Peer("Flower", "flwr", "1.41.0", "flower"),
    Peer("ByzFL", "byzfl", "0.0.11", "byzfl"),
    Peer("ByzPy", "byzpy", "0.1.4", "byzpy"),
    Peer("FedML", "fedml", "0.9.6", "fedml"),
    Peer("FLEX-Clash", "flexclash", "0.0.3", "flexclash"),
    Peer("OpenFL", "openfl", "1.9", "openfl"),
    Peer("P2PFL", "p2pfl", "0.4.4", "p2pfl"),
    Peer("TorchJD", "torchjd", "0.18.0", "torchjd"),
    Peer("geom-median", "geom-median", "0.1.0", "geom_median"),
]
