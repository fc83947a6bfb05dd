"""The paper's three tables of results."""

from fltrust.paper.exhibit import ABLATIONS, ATTACKS, DATASETS, PUBLISHED, RULES, Cell, Exhibit, declared, printed

METHODS = Exhibit(
    name="methods",
    kind="table",
    title="Table III: error of five rules under every attack",
    claim="FLTrust's error under attack is at most 0.04 above FedAvg's without one, on all six data sets; every other rule is ruined by "
    "some attack. For the Scaling attack the second number is the share of triggered examples on which the backdoor works.",
    page="data set",
    row="attack",
    column="rule",
    cells=tuple(
        Cell(page, row, column, declared(dataset, rule, attack), printed(PUBLISHED["methods"][dataset].get(attack, {}).get(rule)))
        for dataset, page in DATASETS.items()
        for attack, row in ATTACKS.items()
        for rule, column in RULES.items()
    ),
)

VARIANTS = Exhibit(
    name="variants",
    kind="table",
    title="Table IV: FLTrust with a part left out",
    claim="FLTrust is better than each of its five variants, so each part is needed. Attacks do not concern FLTrust-Server, which hears no "
    "client.",
    page="data set",
    row="variant",
    column="attack",
    cells=tuple(
        Cell("MNIST-0.5", row, column, declared("mnist-0.5", rule, attack), printed(PUBLISHED["variants"][rule].get(attack)))
        for rule, row in ABLATIONS.items()
        for attack, column in ATTACKS.items()
        if rule != "fltrust-server" or attack == "none"
    ),
)


def _root_bias(share: str) -> float | None:
    """Of the paper's columns, those that say that the root set has as many examples of class 1 as of any other are its case I."""
    return None if share in ("0.1", "0.125", "0.17") else float(share)


ROOT_BIAS = Exhibit(
    name="root-bias",
    kind="table",
    title="Table V: FLTrust when the root set is biased towards one class",
    claim="FLTrust stays accurate and robust while the root set does not differ too much from the clients' data: on MNIST-0.5 up to a "
    "bias of 0.4 the error under attack is at most 0.08. The first column is an even root set.",
    page="data set",
    row="attack",
    column="bias",
    cells=tuple(
        Cell(
            page,
            row,
            share,
            declared(dataset, "fltrust", attack, root_bias=_root_bias(share)),
            printed(PUBLISHED["root_bias"][dataset].get(attack, {}).get(share)),
        )
        for dataset, page in DATASETS.items()
        for attack, row in ATTACKS.items()
        for share in PUBLISHED["root_bias"][dataset]["none"]
    ),
)
