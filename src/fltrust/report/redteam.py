"""What a red team found, as numbers: where the rule breaks, whether anybody would have noticed, what helped, and `redteam.json`."""

import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fltrust.attacks import Searched
from fltrust.experiment import Experiment
from fltrust.redteam.plan import CONTROL, Change, Question, clean_run, words
from fltrust.registry import ATTACKS, RULES
from fltrust.report.agreement import Number
from fltrust.report.reading import Problem, same_question
from fltrust.report.repeat import run_command
from fltrust.report.survival import Board, Line, Point, Row, Survival, boards
from fltrust.report.words import by_hardware
from fltrust.store.results import Result, Results, file_of
from fltrust.version import __version__

Seen = dict[str, Any]  # what `redteam.noticed` keeps of the audit of a run
UNHIDDEN = "No attack here tries to hide from the audit, so “yes” is no promise."
CLEARLY = 0.01  # a change that gains less than one point does not help


@dataclass(frozen=True)
class Worst:
    """The attack that costs a rule most with some number of malicious clients."""

    what: str  # the rule, or the change
    attack: str
    point: Point
    clean: Point
    cost: float  # above the error, or backdoor success, of the rule in question without attack
    attacks: int  # that were tried
    searched: Mapping[Any, float]  # the same cost under each search
    complete: bool = True  # whether it met all that it was to meet


@dataclass(frozen=True)
class Looked:
    """What the audit showed of one attack with one number of malicious clients, in all its seeds together."""

    attack: str
    malicious: int
    seen: tuple[Seen, ...]

    def total(self, name: str) -> int:
        return sum(int(one[name]) for one in self.seen)

    def mean(self, name: str, side: str) -> float | None:
        known = [one[name][side] for one in self.seen if one[name][side] is not None]
        return statistics.fmean(known) if known else None

    @property
    def since(self) -> int | None:
        return min((one["since"] for one in self.seen if one["since"] is not None), default=None)

    @property
    def noticed(self) -> str:
        """ "yes": half of the malicious clients or more are accused, and fewer honest ones than malicious ones."""
        found = self.total("found")
        if not found:
            return "no"
        return "yes" if 2 * found >= self.total("malicious") and self.total("accused") < found else "in part"


@dataclass(frozen=True)
class Answer:
    """All that the page says."""

    question: Question
    command: str  # that asked
    plugins: tuple[Path, ...]
    where: tuple[str, ...]  # options that every run needs to be repeated, such as --data-dir
    facts: Mapping[str, Any]  # of the data, see `redteam.facts`
    runs: tuple[Experiment, ...]  # that were planned, without those of the changes
    results: Results  # of all runs that were planned
    board: Board | None  # the rules under all attacks; None before the first result
    changed: tuple[tuple[str, Board], ...]  # what was changed, and its runs
    audits: Callable[[str], Seen | None]  # by a run's key
    problems: tuple[Problem, ...]  # what was left out, failed or is still to be run

    @property
    def rule(self) -> str:
        return self.row.rule if self.row else words(self.question.rules[0])

    @property
    def label(self) -> str:
        """The rule as a paper calls it: "fltrust" is this package's name, too."""
        own = clean_run(self.question).rule
        return self.rule.replace(RULES.name_of(own), RULES.label_of(own), 1)

    @cached_property
    def row(self) -> Row | None:
        """The rule in question; None if it has no result without attack."""
        own = clean_run(self.question).rule
        for row in self.board.rows if self.board else ():
            if row.clean and row.clean.malicious == 0 and any(one.run.rule == own for one in row.clean.results):
                return row
        return None

    @property
    def clean(self) -> Point | None:
        return self.row.clean if self.row else None

    @property
    def survival(self) -> tuple[Survival, Line] | None:
        return self.row.worst(self.question.threshold) if self.row else None

    @property
    def breaks(self) -> int | None:
        return self.survival[0].breaks if self.survival else None

    @property
    def shown(self) -> int | None:
        """The number of malicious clients that is looked at closely: where it breaks, or the largest that was tested."""
        return self.breaks or (max(self.board.tested, default=None) if self.row and self.board else None)

    @property
    def learns(self) -> bool | None:
        """Whether training without attack beats a guess by more than the chance in the test examples."""
        guess = self.facts.get("guess_error")
        if self.clean is None or guess is None:
            return None
        chance = 2 * (guess * (1 - guess) / max(1, self.facts["test_examples"])) ** 0.5
        return bool(self.clean.error.mean < guess - chance)

    @property
    def backdoor_tested(self) -> bool:
        return any(one.success is not None for one in self.results.all())

    def share(self, malicious: int) -> str:
        return f"{round(100 * malicious / self.question.num_clients, 1):g} %"

    def curve(self) -> list[Worst]:
        """The worst attack on the rule, for each number of malicious clients."""
        return [one for many in self.question.counts if self.row and (one := self._worst(self.row.rule, self.row, many))]

    def compared(self) -> list[Worst]:
        """The rule, its rivals and the changes where the rule breaks, the least cost first."""
        if self.row is None or self.board is None or self.breaks is None:
            return []
        own = self._worst(self._own, self.row, self.breaks)
        rivals = [self._worst(f"{row.rule} instead", row, self.breaks) for row in self.board.rows if row is not self.row]
        others = [self._worst(what, row, self.breaks) for what, board in self.changed for row in board.rows]
        found = [own, *(one and replace(one, complete=self._met_all(one.point)) for one in rivals), *others]
        return sorted((one for one in found if one), key=lambda one: one.cost)

    def _worst(self, what: str, row: Row, malicious: int) -> Worst | None:
        lines = [(line, point) for line in row.lines if not line.idle for point in line.points if point.malicious == malicious]
        if not lines or row.clean is None or self.clean is None:
            return None
        costs = [self._cost(line, point) for line, point in lines]
        line, point = lines[costs.index(max(costs))]
        attacks = [point.results[0].run.attack for _, point in lines]
        searched = {attack: cost for attack, cost in zip(attacks, costs, strict=True) if isinstance(attack, Searched)}
        return Worst(what, line.attack, point, row.clean, max(costs), len(lines), searched)

    def _met_all(self, point: Point) -> bool:
        """Whether every run that was planned of the point's rule, with as many malicious clients, has a result."""
        rule = point.results[0].run.rule
        return all(self.results.of(run) for run in self.runs if (run.rule, run.malicious) == (rule, point.malicious))

    def _cost(self, line: Line, point: Point) -> float:
        """Against the rule in question without attack, so that a change that learns worse does not look better."""
        assert self.clean is not None
        cost = point.error.mean - self.clean.error.mean
        if point.success is not None:
            before = line.clean.success if line.clean else None
            cost = max(cost, point.success.mean - (before.mean if before else 0.0))
        return cost

    @property
    def _own(self) -> str:
        return f"{self.rule}, as it is"

    @property
    def as_it_is(self) -> Worst | None:
        return next((one for one in self.compared() if one.what == self._own), None)

    @property
    def best(self) -> Worst | None:
        """The change that helped most; None if none helped clearly, by more than a point and more than the spread."""
        own = self.as_it_is
        if own is None:
            return None
        least = next(one for one in self.compared() if not self.passed_over(one))  # at the latest the rule itself
        noise = max(CLEARLY, _spread(own.point), _spread(least.point))
        return least if own.cost - least.cost > noise else None

    def passed_over(self, one: Worst) -> str:
        """Why a change is no advice, whatever it costs here; empty if it may be one."""
        own = self.as_it_is
        if RULES.name_of(one.point.results[0].run.rule) == CONTROL != RULES.name_of(clean_run(self.question).rule):
            return "plain averaging is no defence"
        if not one.complete:
            return "it has not met all attacks"
        if own and any(cost > own.searched.get(attack, cost) + CLEARLY for attack, cost in one.searched.items()):
            return "the search harms it more than your rule"
        return ""

    def looked(self) -> list[Looked]:
        """What the audit showed of the rule in question, by attack and number of malicious clients."""
        found = []
        for line in self.row.lines if self.row else ():
            for point in line.points:
                seen = tuple(one for result in point.results if (one := self.audits(result.run.key)))
                if seen and not (point.borrowed or (line.idle and point.malicious)):
                    found.append(Looked(line.attack, point.malicious, seen))
        return found

    def noticed(self) -> Looked | None:
        """Of the worst attack where the rule breaks."""
        if self.survival is None:
            return None
        return next((one for one in self.looked() if (one.attack, one.malicious) == (self.survival[1].attack, self.shown)), None)

    def repeat(self, result: Result) -> str:
        """The command that repeats a run, with the plug-ins that it used and where it was run."""
        command, used = run_command(result.run), result.about["files"]
        if not command.rpartition("\n")[2].startswith("fltrust run"):
            return command  # it says why there is none
        needed = [plugin for plugin in self.plugins if isinstance(used, Mapping) and plugin.name in used]
        named = [word for plugin in needed for word in ("--plugin", str(plugin))]
        return " ".join([command, *map(shlex.quote, (*named, *self.where))])


def answer(
    question: Question,
    runs: Sequence[Experiment],
    changes: Sequence[Change],
    found: Results,
    *,
    command: str,
    plugins: Sequence[Path],
    where: Sequence[str],
    facts: Mapping[str, Any],
    audits: Callable[[str], Seen | None],
    problems: Sequence[Problem],
) -> Answer:
    """`runs`: of the first three stages; `changes`: those of the last one, as far as it is planned."""
    (board,) = boards(_of(runs, found), question.threshold) or (None,)
    whole = [change for change in changes if all(found.of(run) for run in change.runs)]  # half of its attacks would flatter it
    changed = [(change.what, boards(_of(change.runs, found), question.threshold)) for change in whole]
    planned = _of([*runs, *(run for change in changes for run in change.runs)], found)
    return Answer(
        question,
        command,
        tuple(plugins),
        tuple(where),
        facts,
        tuple(runs),
        planned,
        board,
        tuple((what, one[0]) for what, one in changed if one),
        audits,
        tuple(problems),
    )


def _spread(point: Point) -> float:
    return max(point.error.spread, point.success.spread if point.success else 0.0)


def _of(runs: Iterable[Experiment], found: Results) -> Results:
    """The results of these runs and of no others that the folder may hold."""
    wanted = {same_question(run) for run in runs}
    return Results(one for one in found.all() if same_question(one.run) in wanted)


# ---------------------------------------------------------------- redteam.json


def content(answer: Answer, checklist: Sequence[Any]) -> dict[str, Any]:
    """The file: every number with its seeds, and every run with its command."""
    question, survival = answer.question, answer.survival
    tested = None if survival is None else survival[0]
    return {
        "fltrust": __version__,
        "command": answer.command,
        "hardware": by_hardware(answer.results.all()),
        "rule": answer.rule,
        "task": clean_run(question).dataset,
        "experiment": clean_run(question).to_dict(),
        "num_clients": question.num_clients,
        "points": question.points,
        "seeds": list(question.seeds),
        "data": dict(answer.facts),
        "learns": answer.learns,
        "clean": None if answer.clean is None else _point(answer.clean),
        "breaking_point": None
        if survival is None or tested is None
        else {
            "survives": tested.most,
            "survives_share": tested.most / question.num_clients,
            "breaks": tested.breaks,
            "breaks_share": None if tested.breaks is None else tested.breaks / question.num_clients,
            "worst_attack": survival[1].attack,
        },
        "curve": [_worst(one) for one in answer.curve()],
        "rules": [_row(row) for row in (answer.board.rows if answer.board else ())],
        "noticed_means": UNHIDDEN,
        "noticed": [_looked(one) for one in answer.looked()],
        "changes": [_worst(one) for one in answer.compared()],
        "most_useful_change": None if answer.best is None else answer.best.what,
        "checklist": [one._asdict() for one in checklist],
        "not_run": [one._asdict() for one in answer.problems],
        "runs": {
            one.run.key: {
                "rule": RULES.name_of(one.run.rule),
                "attack": ATTACKS.name_of(one.run.attack),
                "malicious": one.run.malicious,
                "seed": one.run.seed,
                "error": one.error,
                "success": one.final_success,
                "file": str(file_of(one.run, Path()).as_posix()),
                "command": answer.repeat(one),
            }
            for one in sorted(answer.results.all(), key=lambda one: one.run.key)
        },
    }


def _row(row: Row) -> dict[str, Any]:
    lines = [{"attack": line.attack, "points": [_point(point) for point in line.points if not point.borrowed]} for line in row.lines]
    return {"rule": row.rule, "attacks": lines}


def _point(point: Point) -> dict[str, Any]:
    return {
        "malicious": point.malicious,
        "error": number(point.error),
        "success": None if point.success is None else number(point.success),
        "seeds": [one.run.seed for one in point.results],
        "runs": [one.run.key for one in point.results],
    }


def number(one: Number) -> dict[str, Any]:
    return {"mean": round(one.mean, 5), "spread": round(one.spread, 5) if len(one.ours) > 1 else None, "values": list(one.ours)}


def _worst(one: Worst) -> dict[str, Any]:
    return {
        "what": one.what,
        "attack": one.attack,
        "attacks_tried": one.attacks,
        "cost": round(one.cost, 5),
        "under_attack": _point(one.point),
        "without_attack": _point(one.clean),
    }


def _looked(one: Looked) -> dict[str, Any]:
    totals = {name: one.total(name) for name in ("malicious", "found", "hostile", "honest", "accused")}
    return {
        "attack": one.attack,
        "malicious_clients": one.malicious,
        "noticed": one.noticed if one.malicious else None,
        "over_all_seeds": totals,
        "since": one.since,
        "rounds_seen": min(seen["rounds"] for seen in one.seen),
        "trust": {side: one.mean("trust", side) for side in ("malicious", "honest")},
        "share": {side: one.mean("share", side) for side in ("malicious", "honest")},
        "evidence": next((seen["evidence"] for seen in one.seen if seen["evidence"]), ""),
    }
