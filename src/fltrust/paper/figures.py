"""The paper's five figures of results. Its source holds their axes and what is said about them, not their values."""

from typing import Any

from fltrust import registry
from fltrust.experiment import Experiment
from fltrust.paper.exhibit import ATTACKS, DATASETS, RULES, Cell, Exhibit, declared

_REAL_ATTACKS = {attack: name for attack, name in ATTACKS.items() if attack != "none"}

CONVERGENCE = Exhibit(
    name="convergence",
    kind="curves",
    title="Figure 3: training error against rounds, MNIST-0.5",
    claim="FLTrust under attack converges as fast as FedAvg without an attack.",
    page="data set",
    row="",
    column="run",
    cells=(
        Cell("MNIST-0.5", "", "FedAvg, no attack", declared("mnist-0.5", "fedavg"), reference=True),
        *(Cell("MNIST-0.5", "", f"FLTrust, {name.lower()}", declared("mnist-0.5", "fltrust", attack)) for attack, name in ATTACKS.items()),
    ),
)

ROOT_SIZE = Exhibit(
    name="root-size",
    kind="figure",
    title="Figure 4: size of the root set, MNIST-0.5",
    claim="A root set of 100 examples is enough; with more the error falls slightly, and the backdoor works on nearly nothing.",
    page="data set",
    row="root examples",
    column="attack",
    cells=tuple(
        Cell("MNIST-0.5", str(size), column, declared("mnist-0.5", "fltrust", attack, root_size=size))
        for size in (50, 100, 200, 300, 400, 500)
        for attack, column in ATTACKS.items()
    ),
)

CLIENTS = Exhibit(
    name="clients",
    kind="figure",
    title="Figure 5: number of clients, MNIST-0.5, 20 % malicious",
    claim="FLTrust withstands the attacks for every number of clients from 50 to 400; Krum, Trim-mean and Median do not withstand the "
    "Krum, Trim or adaptive attacks.",
    page="attack",
    row="clients",
    column="rule",
    cells=tuple(
        Cell(page, str(clients), column, declared("mnist-0.5", rule, attack, num_clients=clients))
        for attack, page in _REAL_ATTACKS.items()
        for clients in (50, 100, 200, 400)
        for rule, column in RULES.items()
    ),
)

SHARES = (0, 10, 20, 40, 60, 80, 90, 95)  # percent


def _with_share(dataset: str, rule: str, attack: str, share: int) -> Experiment:
    malicious = round(share / 100 * registry.DATASETS[dataset].settings["num_clients"])
    if malicious:
        return declared(dataset, rule, attack, malicious=malicious)
    none_expected: dict[str, Any] = {"krum": {"name": "krum", "tolerate": 0}, "trim-mean": {"name": "trim-mean", "trim": 0}}
    return declared(dataset, none_expected.get(rule, rule), "none")


def _applies(rule: str, share: int) -> bool:
    """Trim-mean would throw everything away from a half on."""
    return rule != "trim-mean" or share < 50


MALICIOUS = Exhibit(
    name="malicious",
    kind="figure",
    title="Figure 6: share of malicious clients, MNIST-0.5",
    claim="FLTrust's error stays near FedAvg's without an attack up to 90 % malicious clients; Krum is lost to the Krum attack at 10 %, "
    "Trim-mean and Median at 40 %. Trim-mean does not exist from 50 % on.",
    page="attack",
    row="malicious clients, %",
    column="rule",
    cells=tuple(
        Cell(page, str(share), column, _with_share("mnist-0.5", rule, attack, share))
        for attack, page in _REAL_ATTACKS.items()
        for share in SHARES
        for rule, column in RULES.items()
        if _applies(rule, share)
    ),
)

ADAPTIVE = Exhibit(
    name="adaptive",
    kind="figure",
    title="Figure 7: FLTrust under the adaptive attack, by share of malicious clients",
    claim="FLTrust under the adaptive attack is about as good as FedAvg without one up to over 60 % malicious clients on MNIST-0.1, over "
    "40 % on MNIST-0.5, 60 % on Fashion-MNIST and CIFAR-10, 40 % on HAR, over 40 % on CH-MNIST. The exact attack is not in the paper.",
    page="data set",
    row="malicious clients, %",
    column="attack",
    cells=tuple(
        Cell(page, str(share), ATTACKS[attack], _with_share(dataset, "fltrust", attack, share))
        for dataset, page in DATASETS.items()
        for share in SHARES
        for attack in ("adaptive", "optimal-adaptive")
    ),
)
