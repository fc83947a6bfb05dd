"""`fltrust redteam`: finds the share of malicious clients that breaks a rule on one's own task, in stages that each leave a page behind."""

import dataclasses
import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fltrust.cli.changed import refuse_changed
from fltrust.cli.many import How, numbers, say, seconds, work_through
from fltrust.cli.stopping import Stopped
from fltrust.cli.sweep import refuse_others, say_left_out, write_plan
from fltrust.codec import canonical, plain
from fltrust.errors import InputError
from fltrust.experiment import Experiment
from fltrust.options import OPTIONS
from fltrust.redteam import noticed
from fltrust.redteam.facts import Facts, facts_of
from fltrust.redteam.plan import (
    CONTROL,
    DEMO,
    DEMO_SEEDS,
    SHARES,
    TRIED,
    Change,
    Question,
    Raised,
    Stage,
    changes,
    clean_run,
    most_runs,
    question_of,
    stages,
)
from fltrust.registry import DATASETS
from fltrust.report.reading import Problem, results_in, same_question
from fltrust.report.redteam import Answer, answer, content
from fltrust.report.redteam_checklist import checklist, doubts
from fltrust.report.redteam_page import redteam_page
from fltrust.report.redteam_text import NOT_YET, summary, title, warnings
from fltrust.report.words import name_of, plural
from fltrust.store.files import replace
from fltrust.store.results import Result, Results
from fltrust.sweep import Plan

FILE, PAGE = "redteam.json", "index.html"
FOLDER = Path("redteams")
POINTS, SEEDS = 5.0, 3
MOST_DEMO_JOBS = 4  # its runs are too small to share a processor's cores
FEW = 6  # shares whose columns fit on a screen


def run_redteam(
    given: Mapping[str, str],
    settings: Sequence[str],
    out: Path | None,
    *,
    shares: str | None,
    points: float | None,
    seeds: int | None,
    tried: str | None,
    demo: bool,
    how: How,
) -> None:
    if demo and "dataset" in given:
        raise InputError("--demo brings its own data: leave out --dataset and --task")
    jobs = min(os.cpu_count() or 1, MOST_DEMO_JOBS) if demo and how.jobs is None else how.jobs
    how = dataclasses.replace(how, jobs=jobs, out=out or Path(), reported=False)
    how.prepare(1 if seeds is None else seeds)
    asked = {"shares": shares, "points": points, "seeds": seeds, "try": tried}
    command = _command(given, settings, asked, demo, how)
    given = {**(DEMO if demo else {}), **given}
    if "dataset" not in given:
        raise InputError("name your task with --task, or a data set with --dataset; --demo needs neither")
    question = question_of(
        given,
        settings,
        shares=SHARES if shares is None else shares,
        points=POINTS if points is None else points,
        seeds=seeds or (DEMO_SEEDS if demo else SEEDS),
        tried=TRIED if tried is None else tried,
        precision=how.arithmetic,
    )
    if out is None:
        how = dataclasses.replace(how, out=FOLDER / ("demo" if demo else _key(question)))
    refuse_others(how.out)
    team = _Team(Console(), question, how, f"{command} --out {shlex.quote(str(how.out))}")
    if how.dry_run:
        team.say_plan()
        return
    team.work()
    if team.failed or team.dead() or any(isinstance(one, Raised) for one in team.left_out):
        raise typer.Exit(1)


def _key(question: Question) -> str:
    """Names the folder of a red team that has no --out: the same question goes on there."""
    return hashlib.sha256(canonical(plain([repr(question.fields), *map(repr, question.rules)])).encode()).hexdigest()[:12]


def _command(given: Mapping[str, str], settings: Sequence[str], asked: Mapping[str, Any], demo: bool, how: How) -> str:
    """The options that a user gave, in one order."""
    words = ["fltrust", "redteam", *(["--demo"] if demo else [])]
    if (data := given.get("dataset")) is not None:
        words += ["--dataset" if data in DATASETS else "--task", data]
    words += [word for name, value in given.items() if name != "dataset" for word in (OPTIONS[name], value)]
    words += [word for setting in settings for word in ("--set", setting)]
    words += [
        word
        for name, value in asked.items()
        if value is not None
        for word in (f"--{name}", f"{value:g}" if name == "points" else str(value))
    ]
    words += [word for plugin in how.plugins for word in ("--plugin", str(plugin))]
    words += [] if how.precision is None else ["--precision", how.precision]
    return shlex.join([*words, *_where(how)])


def _where(how: How) -> list[str]:
    """As far as a user said it."""
    device = [] if how.device == "auto" else ["--device", how.device]
    return device + ([] if how.data_dir is None else ["--data-dir", how.data_dir])


class _Team:
    """A red team at work: what is planned, what failed, and the page so far."""

    def __init__(self, screen: Console, question: Question, how: How, command: str) -> None:
        self.screen, self.question, self.how, self.command = screen, question, how, command
        self.stages, self.left_out = stages(question)
        self.changes: list[Change] = []
        self.failed: dict[Experiment, str] = {}
        self.skipped: set[str] = set()  # runs of a rule that fails without attack
        self.facts: Facts | None = None

    # ------------------------------------------------------------ the stages

    def work(self) -> None:
        try:
            self.facts = facts_of(clean_run(self.question, CONTROL), self.how.data_dir)
        except InputError:
            if self.how.ray is None:  # a cluster may have data that are not here
                raise
        self._refuse_changed()
        self.how.done(self.screen)  # says what is damaged
        say_left_out(self.screen, self.left_out)
        try:
            self._do(1, self.stages[0])
            alive = {run.key for stage in self._alive() for run in stage.runs}
            self.skipped = {run.key for run in self._runs()} - alive
            for place, stage in enumerate(self.stages[1:], 2):
                self._do(place, Stage(stage.title, [run for run in stage.runs if run.key in alive]))
            self._try_changes()
        except Stopped as stop:
            self.write()
            say(self.screen, f"{self.how.out / PAGE}: what is known so far")
            raise Stopped(self._so_far(), stop.cause) from None
        found = self.write()
        self._show(found)

    def _so_far(self) -> str:
        """What is done of all that is planned: a stage alone would say little."""
        there, planned = self._results(), self._runs()
        done = sum(self.how.answered(run, there) for run in planned)
        later = "" if self.changes else ", and the changes are still to be planned"
        said = f"stopped: {done:,} of {plural(len(planned), 'run')} finished and saved in {self.how.out}{later}"
        return f"{said}; the same command resumes"

    def _refuse_changed(self) -> None:
        planned = {same_question(run) for run in self._runs()}
        stored = [one for one in self._results().all() if same_question(one.run) in planned]
        refuse_changed(stored, {clean_run(self.question).dataset: self.facts.files if self.facts else None}, self.how.out, self._runs())

    def _alive(self) -> list[Stage]:
        """The stages of the rules that have a result without attack: one that raises would only raise again."""
        there = self._results()
        rules = [rule for rule in self.question.rules if _any_seed(clean_run(self.question, rule), self.question, there)]
        return stages(dataclasses.replace(self.question, rules=tuple(rules)))[0] if rules else []

    def dead(self) -> bool:
        return not _any_seed(clean_run(self.question), self.question, self._results())

    def _try_changes(self) -> None:
        found = self.answer()
        if found.shown is None or found.survival is None:
            return
        at = next(point for point in found.survival[1].points[::-1] if point.malicious <= found.shown)
        worst = at.results[0].run.to_dict()["attack"]
        spare = self.facts.train_examples if self.facts and not self.facts.own_root else 0
        self.changes, left_out = changes(self.question, worst, found.shown, broken=found.breaks is not None, train_examples=spare)
        self._refuse_changed()
        say_left_out(self.screen, left_out)
        self.left_out += left_out
        runs = list({run.key: run for change in self.changes for run in change.runs}.values())
        what = "plain averaging, for comparison" if found.breaks is None else "changes that might help"
        self._do(len(self.stages) + 1, Stage(f"{what}, with {found.shown} of {self.question.num_clients} malicious", runs))

    def _do(self, place: int, stage: Stage) -> None:
        """One stage, and the page after it."""
        last = len(self.stages) + 1
        later = sum(len(one.runs) for one in self.stages[place:])
        after = f"; later stages: {plural(later, 'run')}, then the changes" if later else ""
        say(self.screen, f"Stage {place} of {last}, {stage.title}{after}", style="bold")
        if not stage.runs:
            say(self.screen, "nothing to run")
            return
        wanted = {same_question(run) for run in stage.runs}
        there = Results(one for one in self._results().all() if same_question(one.run) in wanted)  # so that its own runs tell the pace
        self.failed |= work_through(self.screen, stage.runs, self.how, there, parts={}, line=self._line, begin=self._begin, keep=self._keep)
        self.write()

    def _begin(self) -> None:
        self.write()

    def _line(self, result: Result) -> str:
        return line_of(result, clean_run(self.question).root_size)

    def _keep(self, directory: Path) -> None:
        noticed.keep(directory, self.how.out)

    def _results(self) -> Results:
        return results_in(self.how.out).results

    def _runs(self) -> list[Experiment]:
        return [run for runs in (*(one.runs for one in self.stages), *(one.runs for one in self.changes)) for run in runs]

    # ------------------------------------------------------------ what it found

    def answer(self) -> Answer:
        there = self._results()
        return answer(
            self.question,
            [run for stage in self.stages for run in stage.runs],
            self.changes,
            there,
            command=self.command,
            plugins=self.how.plugins,
            where=_where(self.how),
            facts=self.facts.to_dict() if self.facts else {},
            audits=lambda key: noticed.kept(key, self.how.out),
            problems=self._problems(there),
        )

    def _problems(self, there: Results) -> list[Problem]:
        missing = {run.key: run for run in self._runs() if there.of(run) is None}
        reasons = dict.fromkeys(self.skipped, "not tried: the rule has no result without attack")
        reasons |= {run.key: f"failed: {why}" for run, why in self.failed.items()}
        todo = f"{NOT_YET}: the same command resumes"
        return [
            *(Problem(one.what, f"left out: {one.why}") for one in dict.fromkeys(self.left_out)),
            *(Problem(name_of(run), reasons.get(key, todo)) for key, run in missing.items()),
        ]

    def write(self) -> Answer:
        """The plan, the page and the JSON of what is known, each replaced at once."""
        found = self.answer()
        checks = checklist(found)
        self.how.out.mkdir(parents=True, exist_ok=True)
        write_plan(Plan(self._runs(), self.left_out), self.how.out)
        replace(self.how.out / FILE, (json.dumps(content(found, checks), indent=1, allow_nan=False) + "\n").encode())
        replace(self.how.out / PAGE, redteam_page(found, checks).encode(errors="replace"))
        return found

    def _show(self, found: Answer) -> None:
        self.screen.print()
        say(self.screen, title(found), style="bold")
        for warning in warnings(found):
            say(self.screen, f"Warning: {warning}", style="yellow")
        if found.row:
            self.screen.print(_table(found), highlight=False)
        for sentence in summary(found):
            say(self.screen, sentence)
        if found.row and any(doubt := doubts(checklist(found))):
            say(self.screen, "".join(doubt))
        say(self.screen, f"{self.how.out / PAGE}: open it in a browser; the numbers are in {self.how.out / FILE}")

    def say_plan(self) -> None:
        say_left_out(self.screen, self.left_out)
        parts = {(f"stage {place}", stage.title): stage.runs for place, stage in enumerate(self.stages, 1)}
        work_through(self.screen, self._runs(), self.how, self._results(), parts=parts, line=self._line)
        many = most_runs(self.question)
        say(self.screen, f"Stage {len(self.stages) + 1} tries changes where the rule breaks: up to {many} more runs.")


def _any_seed(clean: Experiment, question: Question, there: Results) -> bool:
    return any(there.of(dataclasses.replace(clean, seed=seed)) for seed in question.seeds)


def line_of(result: Result, usual_root: int) -> str:
    """A finished run. Stage 4 also changes the root set: then its size is said."""
    aim, root = getattr(result.run.attack, "aim", None), result.run.root_size
    changed = "" if root == usual_root else f", root set of {root}"
    return f"{name_of(result.run)}{f', aim {aim}' if aim else ''}{changed}: {numbers(result.error, result.final_success)}{seconds(result)}"


def _table(found: Answer) -> Table:
    """Attacks and shares, as the page has them."""
    assert found.row is not None
    counts = [0, *list(found.question.counts)[-FEW:]]
    shown = Table(title=Text(f"{found.rule}: test error after the last round"), title_justify="left", box=None, header_style="bold")
    shown.add_column("attack", no_wrap=True)
    for many in counts:
        shown.add_column(Text(found.share(many)), justify="right", no_wrap=True)
    for line in found.row.lines:
        if line.idle:
            continue
        at = {point.malicious: point for point in line.points}
        ran = [at.get(many) for many in counts]
        shown.add_row(*map(Text, (line.attack, *("" if one is None else f"{one.error.mean:.3f}" for one in ran))))
        if any(one and one.success for one in ran):
            works = ("" if one is None or one.success is None else f"{one.success.mean:.3f}" for one in ran)
            shown.add_row(*map(Text, ("  its backdoor works", *works)))
    return shown
