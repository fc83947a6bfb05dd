"""A page for each rule and attack, made at build time from its class, its docstring and results/."""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch
from league_tables import harm, league, side_by_side, table, worst
from sphinx.application import Sphinx

from fltrust.codec import built
from fltrust.league.table import ATTACKS_LEFT_OUT, RULES_LEFT_OUT
from fltrust.registry import ATTACKS, RULES, Entry, Registry
from fltrust.report.league_text import error_and_success
from fltrust.rules import FedAvg
from fltrust.state import leaves

WHERE = "generated"  # under docs/, not in git

ONE_SEED = "Numbers with ± are means over seeds with their standard deviation; all others are single runs."
MEANING = (
    "Test error; after the slash, the success of a targeted attack, which is the share of its examples that get the attacker's answer."
)


def setup(application: Sphinx) -> dict[str, bool]:
    application.connect("builder-inited", write)
    return {"parallel_read_safe": True}


def write(application: Sphinx) -> None:
    folder = Path(application.srcdir) / WHERE
    for registry in (RULES, ATTACKS):
        for old in (folder / registry.plural).glob("*.md"):
            if old.stem not in registry:
                old.unlink()
        for name in registry:
            save(folder / registry.plural / f"{name}.md", page(registry, registry.entry(name)))


def save(path: Path, text: str) -> None:
    """Only if it changed: Sphinx reads such pages again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def page(registry: Registry, entry: Entry) -> str:
    kind = registry.singular
    numbers = rule_in_league(entry.name) if registry is RULES else attack_in_league(entry.name)
    title = entry.label if entry.name != "none" else "No attack"
    return "\n\n".join(
        part
        for part in (
            f"# {title}" + (" attack" if registry is ATTACKS and not title.lower().endswith("attack") else ""),
            table(["", ""], [["name", f"`{entry.name}`"], ["source", entry.reference or "this project"], *needs(registry, entry)]),
            f"```{{eval-rst}}\n.. autoclass:: fltrust.{entry.kind.__name__}\n```",
            "## On the command line\n\n" + example(registry, entry),
            "## Its numbers in the league\n\n" + numbers,
            f"## Caveats\n\n{caveats(registry, entry)}",
            f"[All {registry.plural}](../../{registry.plural}.md), [how to write {'a rule' if kind == 'rule' else 'an attack'}]"
            f"(../../own-{kind}.md)",
        )
    )


def needs(registry: Registry, entry: Entry) -> list[list[str]]:
    """What it must be given and what it tells, read from its class."""
    if registry is ATTACKS:
        level = next((field.default for field in fields(entry.kind) if field.name == "knowledge"), entry.kind.knowledge)
        return [
            ["sees the honest clients' updates", "yes" if level == "full" else "no"],
            ["needs the root update", "yes" if entry.kind.needs_root else "no"],
        ]
    rule, holds = usual_rule(entry.name), any(field.name == "rule" for field in fields(entry.kind))
    flags = {
        "needs_root": "a root set",
        "needs_ids": "to know which client sent an update",
        "needs_root_loss": "the loss of models on the root set",
        "needs_generator": "random numbers",
    }
    wanted = [text for flag, text in flags.items() if getattr(rule, flag)] or ["the clients' updates only"]
    remembers = any(leaves(rule.init(3, torch.ones(2))))
    shares = "no: it works coordinate by coordinate" if rule.by_coordinate else "yes"
    return [
        ["needs", ", ".join(wanted)],
        ["remembers earlier rounds", "yes" if remembers else "no"],
        ["tells each client's share", shares],
        *([["with another rule within it", "as above, and as that rule"]] if holds else []),
    ]


def usual_rule(name: str) -> Any:
    """The rule with its usual parameters; a rule that holds another one holds the plain mean."""
    return built(RULES, name, {"tolerate": 0, "trim": 0, "rule": FedAvg(by_size=False)})


def example(registry: Registry, entry: Entry) -> str:
    part = registry.singular
    name = (
        f"{entry.name}+median"
        if any(field.name == "rule" and field.default is MISSING and field.default_factory is MISSING for field in fields(entry.kind))
        else entry.name
    )
    other = "--attack trim" if registry is RULES else "--rule fltrust"
    lines = [f"fltrust run --dataset mnist-5k {other} --{part} {name}"]
    lines += [
        f"{lines[0]} --set {part}.{field.name}={json.dumps(field.default)}"
        for field in fields(entry.kind)
        if isinstance(field.default, int | float)
    ][:1]
    return "```bash\n" + "\n".join(lines) + "\n```"


def rule_in_league(name: str) -> str:
    found = [(board, row) for board in league() for row in board.rows if name in row.row.name.split("+") and row.ran]
    own = [(board, row) for board, row in found if row.row.name == name]
    if not found:
        return f"It has no row of its own: {RULES_LEFT_OUT.get(name, 'it was not run')}."
    found.sort(key=lambda one: one[1].row.name != name)  # its own rows first
    rows = [
        [
            row.row.label,
            board.label,
            next((error_and_success(place) for place in row.places if place.cell.column.idle), ""),
            worst(row, "error"),
            worst(row, "success"),
            f"{row.ran} of {len(row.attacked)}",
            f"{row.milliseconds:.1f}" if row.milliseconds else "",
        ]
        for board, row in found
    ]
    text = table(["rule", "data set", "no attack", "worst error", "worst success", "attacks run", "ms per round"], rows)
    hardware = "; ".join(f"{board.label}: {board.hardware}" for board in {board.label: board for board, _ in found}.values())
    text += (
        f"\n\n{MEANING} {ONE_SEED} 20 % of the clients are malicious. Where not all attacks were run, the worst number is the worst so far."
    )
    text += (
        "\n\nA round's time includes training and evaluation; it is the median over the rule's runs. Several may have shared a machine. "
    )
    text += f"{hardware}."
    whole = [(board, row) for board, row in own if row.whole]
    if whole:
        text += "\n\nUnder each attack:\n\n" + side_by_side(
            "attack", [(board.label, {place.cell.column.label: error_and_success(place) for place in row.places}) for board, row in whole]
        )
    return text


def attack_in_league(name: str) -> str:
    boards = [board for board in league() if any(column.registered == name for column in board.columns)]
    if not boards:
        return f"It has no column: {ATTACKS_LEFT_OUT.get(name, 'it was not run')}."
    text = f"{MEANING} {ONE_SEED} 20 % of the clients are malicious."
    labels = list(dict.fromkeys(column.label for board in boards for column in board.columns if column.registered == name))
    for label in labels:
        columns = []
        for board in boards:
            cells = {
                row.row.label: place for row in board.rows for place in row.places if place.cell.column.label == label and place.results
            }
            if cells:
                columns.append(
                    (board.label, {rule: error_and_success(place) for rule, place in sorted(cells.items(), key=lambda cell: harm(cell[1]))})
                )
        if columns:
            text += (f"\n\n### {label}" if len(labels) > 1 else "") + "\n\n" + side_by_side("rule", columns)
    return text


def caveats(registry: Registry, entry: Entry) -> str:
    kind: Any = entry.kind
    lines = []
    if registry is RULES:
        kind = usual_rule(entry.name)
        lines.append("The league's attacks do not adapt to the rule. [Searched attacks](../../worst-case.md) do, and can harm it more.")
        if kind.needs_root or kind.needs_root_loss:
            lines.append("It is only as good as its root set: [choose and check it](../../root-set.md).")
        if kind.needs_ids:
            lines.append(
                "In a federation it needs [node authentication](../../federation.md#rules-that-remember), so that ids mean something."
            )
        if kind.on_host:
            lines.append("It computes on the CPU. On a GPU the round's CUDA graph ends before it.")
        if any(field.name in kind.counts_malicious for field in fields(kind)):
            lines.append("It must be told how many malicious clients to expect. In the league it is told the true number.")
    else:
        if kind.needs_root:
            lines.append("It needs the root update. With a rule that has none, the server computes one for the attack.")
        lines.append("20 % of the clients are malicious in the league. Use a [sweep](../../sweep.md) for other shares.")
    lines.append("[Other packages' versions](../../baselines.md) of a rule or attack with the same name often compute something else.")
    return "\n".join(f"- {line}" for line in lines)
