"""A root set checked: what was measured, and advice in plain words."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fltrust.experiment import Experiment
from fltrust.rootset.measure import Classes, Labels, Trust, by_mean, classes_of, even_samples, labels_of, trust_of
from fltrust.tasks.task import Task

# When a root set needs attention. docs/root-set.md has the numbers that these were chosen by.
SKEWED = 0.3  # distance of its class shares both from equal ones and from the clients'
TRUSTED = 0.5  # share of honest clients that must get trust
OF_EVEN = 0.8  # of the mean trust that an even sample of the same size gives
SPREADS = 2  # by so many standard errors, labels disagree more often than chance explains
WEAK = 0.3  # if only a larger share of wrong labels would stand out, the model is too weak to judge
BETTER_ERROR, BETTER_TRUSTED = 0.02, 0.1  # what makes a larger root set worth a remark
SHOWN = 10  # suspects that are named


@dataclass(frozen=True)
class Finding:
    about: str
    fine: bool
    text: str


@dataclass(frozen=True)
class RootCheck:
    """A root set, what was measured on it, and what to do about it."""

    dataset: str
    size: int
    rounds: int
    classes: Classes | None
    labels: Labels
    trust: Trust
    others: tuple[Trust, ...]  # of even samples of the clients' examples, by size
    findings: tuple[Finding, ...] = ()

    @property
    def fine(self) -> bool:
        return all(finding.fine for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        written = dataclasses.asdict(self)
        written["labels"] |= {"noise": self.labels.noise, "noticeable": self.labels.noticeable}
        return {"fine": self.fine, **written}


def check_root(run: Experiment, task: Task, progress: Callable[[str], None] = lambda step: None) -> RootCheck:
    """Checks the root set of a task without malicious clients; `progress` is told of each training before it begins."""
    progress("training without the root set, to check its labels")
    labels = labels_of(run, task)
    run = by_mean(run)
    progress(f"training with the root set of {len(task.root)}")
    trust, others = trust_of(run, task), []
    for other in even_samples(task, run.seed):
        progress(f"training with an even sample of {len(other.root)}")
        others.append(trust_of(run, other))
    check = RootCheck(run.dataset, len(task.root), run.rounds, classes_of(task), labels, trust, tuple(others))
    return dataclasses.replace(check, findings=tuple(_findings(check)))


def _findings(check: RootCheck) -> list[Finding]:
    findings = [] if check.classes is None else [_about_classes(check.classes)]
    return [*findings, _about_labels(check), *_about_trust(check), *_about_size(check)]


def _about_classes(classes: Classes) -> Finding:
    missing = [str(label) for label, count in enumerate(classes.counts) if not count]
    if missing:
        which = f"class {missing[0]}" if len(missing) == 1 else f"classes {', '.join(missing)}"
        return Finding("classes", False, f"It has no example of {which}. Add some: clients that hold these classes get little trust.")
    largest = max(range(len(classes.counts)), key=classes.counts.__getitem__)
    share = classes.counts[largest] / sum(classes.counts)
    if min(classes.from_even, classes.from_clients) > SKEWED:
        text = f"Class {largest} is {share:.0%} of it. Add examples of the other classes, or remove some of this one."
        return Finding("classes", False, text)
    return Finding("classes", True, f"The classes are balanced: {min(classes.counts)} to {max(classes.counts)} examples of each.")


def _about_labels(check: RootCheck) -> Finding:
    labels = check.labels
    compared = (
        f"a model trained on the clients' examples disagrees with {labels.error:.1%} of its labels; on the test examples it is wrong "
        f"in {labels.test_error:.1%}"
    )
    if labels.error - labels.test_error > SPREADS * labels.spread:
        named = ", ".join(str(suspect.example) for suspect in labels.suspects[:SHOWN])
        text = f"About {labels.noise:.0%} of the labels look wrong: {compared}. Look at these first (counted from 0): {named}."
        return Finding("labels", False, text)
    if labels.noticeable > WEAK:
        return Finding("labels", True, f"Nothing can be said about the labels: {compared}. More rounds may help.")
    return Finding("labels", True, f"The labels look right: {compared}. Fewer than {labels.noticeable:.0%} wrong ones would not stand out.")


def _about_trust(check: RootCheck) -> list[Finding]:
    trust = check.trust
    even = next((other for other in check.others if other.size == check.size), None)
    if not trust.trusted:
        return [Finding("trust", False, "No honest client gets any trust: FLTrust would never change the model. Replace the root set.")]
    said = f"Honest clients get trust in {trust.trusted:.0%} of all cases, {trust.trust:.2f} on average"
    if even is not None and trust.trust < OF_EVEN * even.trust:
        text = f"{said}; an even sample of their own data would give {even.trust:.2f}. The root set does not look like their data."
        return [Finding("trust", False, text)]
    if trust.trusted < TRUSTED:
        return [Finding("trust", False, f"{said}. That is few: most of what honest clients learn is lost. Use more examples.")]
    return [Finding("trust", True, f"{said}.")]


def _about_size(check: RootCheck) -> list[Finding]:
    ours = check.trust
    for other in check.others:
        better = ours.test_error - other.test_error > BETTER_ERROR or other.trusted - ours.trusted > BETTER_TRUSTED
        if other.size > check.size and better:
            text = (
                f"A larger root set may pay: {other.size} examples gave {other.trusted:.0%} of honest clients trust and a test error of "
                f"{other.test_error:.3f}; these {check.size} give {ours.trusted:.0%} and {ours.test_error:.3f}."
            )
            return [Finding("size", True, text)]
    return []
