"""The commands that compare rules and attacks, with their options. What is heavy is imported by the command that needs it."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fltrust.cli.options import ATTACKED, GRID, with_experiment_options
from fltrust.cli.shared import Plugins, Threshold, each, take_task, with_how
from fltrust.errors import InputError

if TYPE_CHECKING:
    from fltrust.cli.many import How


# What the commands of the league's rules share.
OnlyRules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule", help="Only this rule. It need not be in the league: your own, or 'nnm+krum'. Several: with commas, or repeated."
    ),
]
Seeds = Annotated[int, typer.Option(help="Number of seeds: 3 runs the seeds 0, 1 and 2.")]
FewerRounds = Annotated[
    int | None,
    typer.Option(help="Fewer rounds than the data set's usual number, for a quick look. The report does not show such runs."),
]
TableFormat = Annotated[str | None, typer.Option(help="Run nothing. Print the table of the results so far as csv, latex or markdown.")]


@with_how
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables and figures: methods, variants, root-bias, convergence, root-size, clients, malicious, adaptive, choices, "
            "cifar-10-rates, cifar-10-study (default: all of these). Other authors' numbers: checks, or some of them: r1, r1-long-tail, "
            "r2, r3, r4-fashion-mnist, r4-cifar-10, corrections."
        ),
    ] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set. Several: with commas, or repeated.")] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Only this attack. Several: with commas, or repeated.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="Only this rule. Several: with commas, or repeated.")] = None,
    seeds: Seeds = 1,
    *,
    how: "How",
) -> None:
    """Run the paper's tables and figures, and compare with its numbers.

    Runs that are done are not run again. Ctrl-C stops it, and the same command resumes it.

    Examples:

    [bold]fltrust reproduce --dry-run[/bold]

    [bold]fltrust reproduce methods --dataset mnist-0.5 --seeds 3 --device cuda --precision float16 --jobs 4[/bold]

    [bold]fltrust reproduce methods root-bias --dataset har --seeds 5 --jobs 2[/bold]

    [bold]fltrust reproduce r1 --seeds 3 --device cuda --jobs 8[/bold]
    """
    from fltrust.cli.reproduce import reproduce as reproduce_all

    reproduce_all(each(names), only_datasets=each(dataset), only_attacks=each(attack), only_rules=each(rule), seeds=seeds, how=how)


@with_how
def league(
    rule: OnlyRules = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="Only this attack. It may be your own. Several: with commas, or repeated.")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only this data set. Several: with commas, or repeated (default: mnist-0.5, fashion-mnist, har, cifar-10)."),
    ] = None,
    seeds: Seeds = 1,
    rounds: FewerRounds = None,
    format: TableFormat = None,
    *,
    how: "How",
) -> None:
    """Run every rule against every attack, and print the worst attack on each rule.

    Runs that are done are not run again. Ctrl-C stops it, and the same command resumes it. A run that fails stops no other.

    Examples:

    [bold]fltrust league --dry-run[/bold]

    [bold]fltrust league --plugin my_rule.py --rule my-rule --dataset mnist-0.5 --jobs 2[/bold]

    [bold]fltrust league --rule krum --rule nnm+krum --dataset mnist-5k --rounds 200[/bold]

    [bold]fltrust league --dataset mnist-0.5 --seeds 3 --device cuda --precision float16 --jobs 8[/bold]

    [bold]fltrust league --dataset har --format latex > table.tex[/bold]
    """
    from fltrust.cli.league import league as run_league

    run_league(
        only_datasets=each(dataset),
        only_rules=each(rule),
        only_attacks=each(attack),
        seeds=seeds,
        rounds=rounds,
        format=format,
        how=how,
    )


@with_how
def worst_case(
    rule: OnlyRules = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this data set. Several: with commas, or repeated (default: mnist-0.5, har, fashion-mnist, cifar-10, mnist-0.1)."
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INTEGER",
            help="Only this share of malicious clients, in per cent: 0, 10, 20, 40 or 60. Several: with commas, or repeated.",
        ),
    ] = None,
    seeds: Seeds = 1,
    rounds: FewerRounds = None,
    format: TableFormat = None,
    *,
    how: "How",
) -> None:
    """How bad can it get? Run every rule under an attack that is searched on it, at several shares of malicious clients.

    The table shows the worst of the search and of every other attack whose result is in the folder. It is a lower bound of the worst case.
    Before a search come six attacks that have broken most rules. Where an attack adds 0.4 or more to a rule's own error, the rule is
    broken, and nothing more is run there.
    Runs that are done are not run again. Ctrl-C stops it, and the same command resumes it. A run that fails stops no other.

    Examples:

    [bold]fltrust worst-case --dry-run[/bold]

    [bold]fltrust worst-case --plugin my_rule.py --rule my-rule --rule fltrust --dataset mnist-5k --share 20 --rounds 100[/bold]

    [bold]fltrust worst-case --dataset mnist-0.5 --seeds 3 --device cuda --precision float16 --jobs 8[/bold]

    [bold]fltrust worst-case --dataset har --format latex > table.tex[/bold]
    """
    from fltrust.cli.worst_case import worst_case as run_worst_case

    run_worst_case(
        only_datasets=each(dataset),
        only_rules=each(rule),
        only_shares=[_per_cent(one) for one in each(share)],
        seeds=seeds,
        rounds=rounds,
        format=format,
        how=how,
    )


def _per_cent(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--share {text}: expected a whole number of per cent, such as 20") from None


@partial(with_experiment_options, several=GRID)
@with_how
def sweep(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="A TOML file with the grid. The options override it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PART.PARAMETER=VALUE,...", help="Values of a parameter of the rule, attack, split or server."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="INTEGER", help="How many seeds: 0, 1, ... (default: 1).")] = None,
    task: Annotated[str | None, typer.Option(metavar="FILE.py:FUNCTION|FOLDER", help="Your own data, not a --dataset.")] = None,
    threshold: Threshold = 0.05,
    format: Annotated[str | None, typer.Option(help="Run nothing; print what each rule survives as csv, latex or markdown.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results and the page (default: sweeps/KEY). A sweep resumes and grows there.")
    ] = None,
    *,
    how: "How",
) -> None:
    """How many malicious clients does each rule survive? Run a grid of experiments, and write a page with the answer.

    Every field takes several values, with commas or by repeating its option. If interrupted, the same command resumes. A run that fails
    stops no other, and a combination that makes no sense is named and left out.

    Examples:

    [bold]fltrust sweep --dataset mnist-5k --rule fltrust,krum --attack trim,alie --malicious 0,1,2,3,4 --seeds 3 --out sweeps/first[/bold]

    [bold]fltrust sweep grid.toml --jobs 2 --dry-run[/bold]

    [bold]fltrust sweep --task my_task.py:build --plugin my_rules.py --rule mine,fltrust --attack trim --malicious 0,2,4[/bold]

    [bold]fltrust sweep --out sweeps/first --format latex > table.tex[/bold]
    """
    from fltrust.cli.sweep import run_sweep

    take_task(task, given)
    given |= {} if seeds is None else {"seeds": seeds}
    run_sweep(config, given, settings or [], out, threshold=threshold, format=format, how=how)


@partial(with_experiment_options, several=ATTACKED)
@with_how
def redteam(
    given: dict[str, Any],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PART.PARAMETER=VALUE", help="A parameter of your rule, of the attacks, the split or the server."),
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="FILE.py:FUNCTION|FOLDER", help="Your own data, not a --dataset.")] = None,
    shares: Annotated[
        list[str] | None, typer.Option(metavar="PERCENT,...", help="Shares of malicious clients (default: 5,10,20,30,40,50).")
    ] = None,
    points: Annotated[
        float | None,
        typer.Option(
            help="Points of error or backdoor success that an attack may cost; if it costs more, the share breaks the rule (default: 5)."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds: 0, 1, ... (default: 3; with --demo 2).")] = None,
    tried: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="RULES",
            help="Rules to try instead where yours breaks, or 'none' "
            "(default: anchor, fltrust, nnm+geometric-median, centred-clipping, median).",
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo", help="A small red team of FLTrust on 5,000 digits that come with the package, with a run on each core (at most 4)."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the page, the JSON and the runs (default: redteams/KEY). A red team resumes there.")
    ] = None,
    *,
    how: "How",
) -> None:
    """Where does a rule break? Attack it on your own task, and write a page with the answer.

    It runs without attack first, then known attacks, then an attack that is searched on the rule, with more and more malicious clients.
    Where the rule breaks, it tries other rules and a larger root set. If interrupted, the same command resumes. A rule or a run that fails
    stops no other.

    --rule and --attack take several names, with commas or repeated. The first rule is yours, and the others are compared with it.

    Examples:

    [bold]fltrust redteam --demo[/bold]

    [bold]fltrust redteam --task my_task.py:build --rule fltrust --out redteams/mine[/bold]

    [bold]fltrust redteam --task digits --rule krum,median --attack trim,alie --shares 10,20,40 --seeds 1 --dry-run[/bold]

    [bold]fltrust redteam --dataset letter --plugin my_rules.py --rule mine --points 2 --device cuda --jobs 4[/bold]
    """
    from fltrust.cli.redteam import run_redteam

    take_task(task, given)
    run_redteam(given, settings or [], out, shares=_joined(shares), points=points, seeds=seeds, tried=_joined(tried), demo=demo, how=how)


def _joined(given: list[str] | None) -> str | None:
    return None if given is None else ",".join(given)


def report(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="A folder of results (default: results), a sweep, run directories of 'fltrust run', or a folder of them."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page, the figures and the tables.")] = Path("report"),
    plugin: Plugins = None,
    threshold: Threshold = 0.05,
) -> None:
    """Turn results into a page for a browser, figures (PNG, PDF) and tables (Markdown, LaTeX).

    The page of a sweep, or of your own runs, says how many malicious clients each rule survives. Results of 'fltrust reproduce' and
    'fltrust league' stand beside the paper's numbers.

    Examples:

    [bold]fltrust report[/bold]

    [bold]fltrust report runs --out mine[/bold]

    [bold]fltrust report sweeps/first --plugin my_rules.py --threshold 0.02[/bold]
    """
    from fltrust.cli.report import report as write_report

    write_report(sources or [Path("results")], out, plugin or [], threshold)
