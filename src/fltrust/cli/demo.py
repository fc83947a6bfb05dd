"""`fltrust demo`: two rules, no attack and two attacks, live on the screen."""

import shutil
import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fltrust.cli.run import chosen_device
from fltrust.experiment import Experiment
from fltrust.record import Record
from fltrust.running.loop import play
from fltrust.running.sinks import Sink, trust_of
from fltrust.tasks.build import build_task

RULES = {"fedavg": "FedAvg (plain average)", "fltrust": "FLTrust"}
ATTACKS = {
    "none": "no attack",
    "trim": "Trim attack (sabotage)",
    "scaling": "Scaling attack (backdoor)",
}

SETTINGS = {"num_clients": 10, "malicious": 3, "rounds": 150, "evaluate_every": 30}

NEXT = """Try next
  fltrust run --dataset mnist-5k --rule krum --attack krum     another rule, the attack made for it
  fltrust run --dataset mnist-5k --attack optimal-adaptive     the attack that FLTrust does not withstand
  fltrust list rules | attacks | datasets                      all the names
  fltrust data fetch mnist                                     download the paper's data, then use --dataset mnist-0.5"""


def show(*, device: str, seed: int) -> None:
    device = chosen_device(device)
    runs = {(rule, attack): Experiment.on("mnist-5k", rule, attack, seed=seed, **SETTINGS) for attack in ATTACKS for rule in RULES}
    first = next(iter(runs.values()))
    screen = Console()
    screen.print(
        f"[bold]{first.num_clients} clients[/bold] train the paper's network on 4,000 real handwritten digits, {first.rounds} rounds; "
        f"[bold]{first.malicious} of them are malicious[/bold].\n"
        f"FLTrust's server holds {first.root_size} clean examples. "
        "It scores each client by how closely its update aligns with the server's own.\n",
        highlight=False,
    )
    seen: dict[tuple[str, str], Record] = {}  # the last that was evaluated
    rounds: dict[tuple[str, str], int] = {}
    began = time.monotonic()
    with Live(console=screen, auto_refresh=False, transient=True) as live:

        class Shown(Sink):
            def record(self, record: Record) -> None:
                rounds[name] = record.round
                if record.evaluated:
                    seen[name] = record
                if screen.is_terminal:
                    live.update(Group(_table(runs, seen, rounds), Text(f"{time.monotonic() - began:.0f} s")), refresh=True)

        for name, run in runs.items():
            play(run, build_task(run, device=device), [Shown()])
            if not screen.is_terminal:
                error = seen[name].test_error
                screen.print(f"{RULES[name[0]]}, {ATTACKS[name[1]]}: test error {error:.3f}", highlight=False)
    screen.print(_table(runs, seen, rounds))
    screen.print(_summary(seen), highlight=False)
    screen.print(f"[dim]{time.monotonic() - began:.0f} s on {device}, seed {seed}, one run each[/dim]\n", highlight=False)
    program = "fltrust" if shutil.which("fltrust") else sys.argv[0]
    screen.print(NEXT.replace("fltrust ", f"{program} "), highlight=False, markup=False, soft_wrap=True)


def _table(runs: dict[tuple[str, str], Experiment], seen: dict[tuple[str, str], Record], rounds: dict[tuple[str, str], int]) -> Table:
    table = Table(title="Wrong answers on 1,000 test digits after training", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("wrong", justify="right")
    table.add_column("backdoor\nworks", justify="right")
    table.add_column("trust:\nhonest", justify="right")
    table.add_column("trust:\nmalicious", justify="right")
    table.add_column("round")
    for (rule, attack), run in runs.items():
        record, done = seen.get((rule, attack)), rounds.get((rule, attack), 0)
        cells = ["", "", "", ""]
        if record is not None:
            cells[0] = _coloured(record.test_error)
            cells[1] = _coloured(record.success)
            trust = trust_of(record) if run.rule.needs_root and attack != "none" else {}
            cells[2:] = [f"{trust[whose]:.2f}" if whose in trust else "" for whose in ("honest", "malicious")]
        bar = "done" if done == run.rounds else ProgressBar(total=run.rounds, completed=done, width=5) if done else ""
        if rule == next(iter(RULES)):
            table.add_row(Text(ATTACKS[attack], style="bold"))
        table.add_row("  " + RULES[rule], *cells, bar, end_section=rule == list(RULES)[-1])
    return table


def _coloured(share: float | None) -> str:
    if share is None:
        return ""
    return f"[{'red' if share > 0.3 else 'yellow' if share > 0.15 else 'green'}]{share:.1%}[/]"


def _summary(seen: dict[tuple[str, str], Record]) -> str:
    """What the table says, in words made from its numbers."""
    lines = []
    for attack in ("trim", "scaling"):
        record = seen["fltrust", attack]
        trust = trust_of(record)
        honest, malicious = trust["honest"], trust["malicious"]
        said = f"{attack.capitalize()} attack: FLTrust trusts honest clients {honest:.2f} on average, malicious ones {malicious:.2f}; "
        plain = seen["fedavg", attack]
        if record.success is not None and plain.success is not None:
            said += f"the backdoor works on {record.success:.0%} of the digits that carry it, under plain averaging on {plain.success:.0%}."
        else:
            said += f"it is wrong on {record.test_error:.0%} of the test digits, plain averaging on {plain.test_error:.0%}."
        lines.append(said)
    return "\n".join(lines)
