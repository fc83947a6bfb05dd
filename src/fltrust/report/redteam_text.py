"""What a red team found in a few sentences made from its numbers, for the page and for the terminal."""

from fltrust.attacks import Searched
from fltrust.redteam.plan import clean_run
from fltrust.report.redteam import Answer, Looked, Worst
from fltrust.report.survival import Line, Point
from fltrust.report.tables import mean_and_spread
from fltrust.report.words import plural, signed

NOT_YET = "not run yet"
NOTICED = {
    "yes": "The audit would have noticed this attack, which does not try to hide.",
    "in part": "The audit might have noticed this attack, which does not try to hide.",
    "no": "The audit would not have noticed this attack, although it does not try to hide.",
}

SEARCHED_FOR = {
    "mean": "it pushes against the honest mean",
    "cosine": "it turns the update against the honest mean",
    "sign": "it pushes each parameter the wrong way",
    "unseen": "it aims at what the root set does not see",
    "loss": "it raises the loss",
    "class": "it raises the loss on one class",
    "backdoor": "it plants a backdoor",
}


def title(answer: Answer) -> str:
    survival = answer.survival
    if survival is None:
        return f"{answer.label}: no breaking point yet"
    if answer.breaks is None:
        return f"{answer.label} holds up to {answer.share(survival[0].most)} malicious clients, all that was tested"
    return f"{answer.label} breaks at {answer.share(answer.breaks)} malicious clients"


def setting(answer: Answer) -> str:
    run = clean_run(answer.question)
    taking_part = "" if run.clients_per_round == run.num_clients else f", {run.clients_per_round} in a round"
    return f"On {run.dataset}: {run.num_clients} clients{taking_part}, {plural(run.rounds, 'round')}, model {run.model}."


def warnings(answer: Answer) -> list[str]:
    """What makes the numbers worthless."""
    said = []
    if answer.row is None:
        begun = "has no finished run without attack, so nothing can be said of it"
        own = [one for one in answer.problems if one.what.startswith(f"rule {answer.rule},") or f", {answer.rule}, " in one.what]
        why = next((f": {one.why}" for one in own if one.why.startswith(("left out", "failed"))), "")
        said.append(f"{answer.rule} {begun}{why}.")
    if answer.learns is False and answer.clean:
        said.append(
            f"the task does not learn. Without attack the error is {answer.clean.error.mean:.3f}. Who always gives the most frequent "
            f"answer has {answer.facts['guess_error']:.3f}. A model that has learnt nothing cannot be harmed: mend the task first."
        )
    if answer.row and (left := sum(one.why.startswith(NOT_YET) for one in answer.problems)):
        said.append(f"{plural(left, 'planned run')} did not run yet. What they show may be worse.")
    return said


def summary(answer: Answer) -> list[str]:
    """The answer in a few sentences made from its numbers."""
    question, survival, clean = answer.question, answer.survival, answer.clean
    if clean is None:
        return []
    clients = question.num_clients
    said = [f"Without attack the test error is {mean_and_spread(clean.error)} ({seeds_of(clean)})."]
    if survival is None:
        return said
    most, line = survival[0].most, survival[1]
    if answer.breaks is None:
        said.append(
            f"No tested share costs more than {question.points:g} points. The largest is {answer.share(most)} ({most} of {clients})."
        )
    else:
        up_to = (
            f"The largest tested share that costs at most {question.points:g} points is {answer.share(most)}"
            if most
            else f"Even the smallest tested share costs more than {question.points:g} points"
        )
        at = next(point for point in line.points if point.malicious == answer.breaks)
        said.append(
            f"{up_to}. With {answer.share(answer.breaks)} ({answer.breaks} of {clients}), {_in_full(line)} takes {_taken(line, at)}."
        )
    if (looked := answer.noticed()) is not None and answer.breaks is not None:
        said.append(f"{NOTICED[looked.noticed]} {_accused(looked)}")
    if (best := answer.best) is not None and (own := answer.as_it_is) is not None:
        said.append(f"What helped most: {best.what}. {helped(answer, best, own)}")
    elif len(answer.compared()) > 1:
        said.append("None of the changes that were tried helped clearly.")
    return said + cheaper(answer)


def cheaper(answer: Answer) -> list[str]:
    """The changes that cost less than the one that is named, or than the rule, and why they are not named."""
    limit = answer.best or answer.as_it_is
    found = [(one, why) for one in answer.compared() if limit and one.cost < limit.cost and (why := answer.passed_over(one))]
    return [f"Not advised: {one.what}. It costs {points(one.cost)} there, but {why}." for one, why in found]


def helped(answer: Answer, best: Worst, own: Worst) -> str:
    still = " The rule still breaks with it." if best.cost > answer.question.threshold else ""
    return f"It costs {points(best.cost)} instead of {points(own.cost)} there.{still}"


def _in_full(line: Line) -> str:
    """What the attack of a table's row is: the words of a search's aim explain themselves nowhere."""
    attack = line.points[-1].results[0].run.attack
    return f"an attack searched on the rule (“{line.attack}”: {SEARCHED_FOR[attack.aim]})" if isinstance(attack, Searched) else line.attack


def _taken(line: Line, at: Point) -> str:
    error = f"the error to {mean_and_spread(at.error)}"
    if at.success is None or line.clean is None:
        return error
    before = line.clean.success.mean if line.clean.success else 0.0
    gained = at.success.mean - before
    return f"the backdoor's success to {mean_and_spread(at.success)}" if gained > at.error.mean - line.clean.error.mean else error


def _accused(looked: Looked) -> str:
    runs = (
        plural(len(looked.seen), "run") + f" with {plural(looked.malicious, 'malicious client')}{' each' if len(looked.seen) > 1 else ''}"
    )
    return (
        f"In {runs}, it accuses {looked.total('found')} of {looked.total('malicious')} malicious and {looked.total('accused')} of "
        f"{looked.total('honest')} honest clients."
    )


def points(cost: float) -> str:
    return f"{signed(100 * cost, 1).removeprefix('+')} points"


def seeds_of(point: Point) -> str:
    seeds = [one.run.seed for one in point.results]
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
