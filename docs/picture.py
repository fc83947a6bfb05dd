"""Draws docs/picture.svg from results/: how much harm a share of malicious clients does to five rules on MNIST-0.5.

python docs/picture.py
"""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fltrust.paper.exhibit import declared
from fltrust.registry import RULES
from fltrust.report.looks import COLOURS
from fltrust.store.results import Results, read

DOCS = Path(__file__).parent
SHARES = (10, 20, 40, 60, 80, 90, 95)  # of 100 clients
RULE_NAMES = ("fedavg", "krum", "trim-mean", "median", "fltrust")
PANELS = {
    "worst of the paper's five attacks": ("label-flip", "krum", "trim", "scaling", "adaptive"),
    "exact adaptive attack, made for FLTrust": ("optimal-adaptive",),
}
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "fltrust",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def harm(results: Results, rule: str, attacks: tuple[str, ...], malicious: int) -> float | None:
    """The largest mean test error over the attacks; None where the rule cannot work with so many, or one was not run."""
    if rule == "trim-mean" and 2 * malicious >= 100:
        return None
    errors = []
    for attack in attacks:
        found = results.seeds(declared("mnist-0.5", rule, attack, malicious=malicious))
        if not found:
            return None
        errors.append(sum(one.error for one in found) / len(found))
    return max(errors)


def main() -> None:
    results = read(DOCS.parent / "results")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.1), layout="constrained", facecolor="white")
        for axis, (title, attacks) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
            for rule in RULE_NAMES:
                entry = RULES.entry(rule)
                points = [(share, error) for share in SHARES if (error := harm(results, rule, attacks, share)) is not None]
                assert entry.look is not None
                axis.plot(
                    *zip(*points, strict=True),
                    label=entry.label,
                    color=COLOURS[entry.look.colour][0],
                    marker=entry.look.marker,
                    linewidth=2.6 if rule == "fltrust" else 1.4,
                )
            axis.set_title(title, loc="left", fontsize=10, fontweight="bold")
            axis.set_xlabel("malicious clients, %")
            axis.set_xticks([10, 20, 40, 60, 80, 95])
            axis.set_ylim(0, 1)
            axis.grid(axis="y", color="#e2dfd9", linewidth=0.6)
        figure.axes[0].set_ylabel("test error")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(DOCS / "picture.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
