"""The tables of docs/baselines.md: each peer's stand between two comments, and are written by nobody's hand."""

import re
from pathlib import Path

from .comparison import SAME, Comparison, Measured, least_rows, measured, with_one_nan
from .draws import KINDS
from .peer import Peer
from .shortest import Shortest, load

PAGE = Path(__file__).parents[2] / "docs" / "baselines.md"


def section(peer: Peer) -> str:
    """The peer's tables: rules, attacks, and the shortest inputs on which it and ours differ."""
    found, comparisons = load(), peer.comparisons()
    kinds = {"rules": "rule", "attacks": "attack"}
    text = []
    for plural, singular in kinds.items():
        chosen = [comparison for comparison in comparisons if comparison.registry.plural == plural]
        if not chosen:
            continue
        heading = ["what it computes", "result", f"draws that differ: {', '.join(KINDS)}", "largest difference"]
        if plural == "rules":
            heading += ["one NaN row", "fewest rows at f = 1, theirs and ours"]
        shown = {peer.key(comparison): found.get(peer.key(comparison)) for comparison in chosen}
        text.append(
            table(
                [f"{peer.label} {peer.version}: {singular}", "ours", *heading],
                [line(comparison, shown[peer.key(comparison)]) for comparison in chosen],
            )
        )
        apart = [[f"`{key.partition(': ')[2]}`", *example(shortest)] for key, shortest in shown.items() if shortest is not None]
        if apart:
            text.append(table([f"shortest input: {singular}", "f" if plural == "rules" else "m", "rows", peer.label, "ours"], apart))
    return "\n\n".join(text)


def line(comparison: Comparison, shortest: Shortest | None) -> list[str]:
    seen = measured(comparison)
    cells = [
        f"`{comparison.theirs}`",
        f"`{comparison.our_text}`",
        comparison.computes,
        verdict(seen, shortest),
        counts(seen),
        amount(seen.largest),
    ]
    if comparison.registry.plural == "rules":
        cells += [with_one_nan(comparison.call), f"{least_rows(comparison.call)}, {least_rows(comparison.our_call)}"]
    return cells


def verdict(seen: Measured, shortest: Shortest | None) -> str:
    return "differs" if any(seen.differ.values()) or shortest is not None else "agrees"


def counts(seen: Measured) -> str:
    return ", ".join(map(str, seen.differ.values())) + f" of {seen.draws}" if any(seen.differ.values()) else f"none of {seen.draws} each"


def amount(largest: float) -> str:
    return "rounding" if largest <= SAME else f"{largest:.2g}"


def example(found: Shortest) -> list[str]:
    rows = [point(row) for row in found.rows]
    stair = len(rows) > 10
    return [
        str(found.f),
        f"{rows[0]}, {rows[1]} .. {rows[-2]}, {rows[-1]}" if stair else ", ".join(rows),
        point(found.theirs),
        point(found.ours),
    ]


def point(row: list[float]) -> str:
    return f"{row[0]:.4g}" if len(row) == 1 else "(" + ", ".join(f"{value:.4g}" for value in row) + ")"


def table(heading: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heading, ["---"] * len(heading), *lines])


# ---------------------------------------------------------------- in the page


def between(peer: Peer) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {peer.module}: written by `make baselines` -->\n).*?(?=\n<!-- {peer.module}: end -->)", re.DOTALL)


def in_page(peer: Peer) -> str:
    """What the page says of this peer."""
    return str(between(peer).findall(PAGE.read_text())[0])


def write(peer: Peer) -> None:
    text, new = PAGE.read_text(), section(peer)
    PAGE.write_text(between(peer).sub(lambda _: new, text))
