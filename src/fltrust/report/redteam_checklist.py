"""Known mistakes of security evaluations, each asked of this red team and answered from its facts. "yes" is always the good answer.

After Khan, Shejwalkar, Houmansadr, Anwar: On the Pitfalls of Security Evaluation of Robust Federated Learning (DLSP 2023), and their survey
of 50 defences (Decoding FL Defenses, 2025).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fltrust.attacks import Searched
from fltrust.redteam.plan import CONTROL, clean_run
from fltrust.registry import RULES
from fltrust.report.redteam import Answer
from fltrust.report.words import plural
from fltrust.rules import Rule

SEEDS = 3  # fewer have no spread to speak of
MANY = 50  # clients; with fewer, one client is much
DIFFERENT = 0.1  # mean distance of a client's classes from all clients': below, clients are alike
STILL = 0.01  # what the last quarter of the rounds may gain: more, and training was not over
NOT_MEASURED = "not measured"


class Check(NamedTuple):
    question: str
    answer: str  # yes, no or not measured
    why: str
    if_no: str  # what a "no" means, in a few words


def checklist(answer: Answer) -> list[Check]:
    return list(_checks(answer))


def doubts(checks: Sequence[Check]) -> tuple[str, str]:
    """How many checks say no, and what that means, for the first screen; empty if none does."""
    found = [check.if_no for check in checks if check.answer == "no"]
    if not found:
        return "", ""
    return f"{len(found)} of {plural(len(checks), 'check')}", f" {'says' if len(found) == 1 else 'say'} no: {', '.join(found)}."


def _checks(answer: Answer) -> Iterator[Check]:
    question, clean, guess = answer.question, answer.clean, answer.facts.get("guess_error")
    usual, results = clean_run(question), answer.results.all()
    if answer.learns is None or clean is None:
        why = "There is no run without attack." if clean is None else "A guess cannot be scored with this objective."
    else:
        why = f"Its error is {clean.error.mean:.3f}; who always gives the most frequent answer has {guess:.3f}."
    learns = NOT_MEASURED if answer.learns is None else _yes(answer.learns)
    yield Check("Does the model learn without attack?", learns, why, "the model does not learn")

    yield _trained(answer)
    yield _hard(answer)

    apart = answer.facts.get("difference")
    yield Check(
        "Do the clients hold different data?",
        NOT_MEASURED if apart is None else _yes(apart >= DIFFERENT),
        "The examples have no single class to compare."
        if apart is None
        else f"On average {apart:.0%} of a client's examples would have to change class to be like all clients' together; {DIFFERENT:.0%} "
        "is asked for. Defences look better if clients are alike.",
        "the clients hold much the same data",
    )
    yield Check(
        "Are there many clients, of which some take part in a round?",
        _yes(question.num_clients >= MANY and usual.clients_per_round < question.num_clients),
        f"{question.num_clients} clients, {usual.clients_per_round} in a round. Numbers with few clients, or with all of them in every "
        "round, do not carry over to a federation of phones.",
        f"there are fewer than {MANY} clients" if question.num_clients < MANY else "all clients take part in every round",
    )

    searched = [one for one in results if isinstance(one.run.attack, Searched)]
    yield Check(
        "Does an attack adapt to the rule?",
        _yes(bool(searched)) if results else NOT_MEASURED,
        f"{len(searched)} runs searched the worst updates on the very rule, anew in every round."
        if searched
        else "No run with the search is finished. Fixed attacks make a rule look better than it is.",
        "no attack adapts to the rule",
    )
    kinds = {type(one.run.attack) for one in results if not one.run.attack.idle}
    backdoor = answer.backdoor_tested
    yield Check(
        "Are there several attacks, with different goals?",
        _yes(len(kinds) > 2 and backdoor) if kinds else NOT_MEASURED,
        f"{len(kinds)} kinds of attacks; " + ("sabotage and a backdoor." if backdoor else "sabotage only, no backdoor."),
        "there are few kinds of attacks" if backdoor else "no backdoor was tested",
    )
    tested = sorted({one.run.malicious for one in results} - {0})
    yield Check(
        "Are several shares of malicious clients tested?",
        _yes(len(tested) > 2),
        f"{', '.join(map(str, tested)) or 'None'} of {question.num_clients} clients.",
        "few shares were tested",
    )
    following = _following(answer)
    yield Check(
        "Does the rule work without knowing how many clients are malicious?",
        _yes(not following) if results else NOT_MEASURED,
        f"{answer.rule} was told the true number, which nobody knows. Fix it with "
        + " ".join(f"--set {name}=NUMBER." if name == following[-1] else f"--set {name}=NUMBER" for name in following)
        if following
        else "It was told nothing that a server cannot know.",
        "the rule was told how many clients are malicious",
    )
    counts = {len(point.results) for row in (answer.board.rows if answer.board else ()) for line in row.lines for point in line.points}
    yield Check(
        "Is every number a mean over several seeds?",
        _yes(min(counts) >= SEEDS) if counts else NOT_MEASURED,
        f"{min(counts)}{f' to {max(counts)}' if max(counts) > min(counts) else ''} for each; at least {SEEDS} are asked for."
        if counts
        else "There is no number yet.",
        f"some numbers have only {plural(min(counts, default=0), 'seed')}",
    )
    yield Check(
        "Is the error of every class and every client looked at?",
        NOT_MEASURED,
        "Only the mean over all test examples is. A rule may sacrifice small groups.",
        "",
    )
    yield Check(
        "Is a realistic attacker tried too, which sees only its own clients?",
        _yes(any(getattr(one.run.attack, "knowledge", "") == "partial" and isinstance(one.run.attack, Searched) for one in searched))
        if searched
        else NOT_MEASURED,
        "A search with full knowledge sees all updates, which no real client does: its numbers are a worst case. "
        "--set attack.knowledge=partial tries a weaker one.",
        "no attacker that sees only its own clients was tried",
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _following(answer: Answer) -> list[str]:
    """The parameters of the rule in question, and of the rules within it, that changed with the number of malicious clients."""
    usual = clean_run(answer.question).rule
    rules = [one.run.rule for one in answer.results.all()]
    alike = [_told(rule) for rule in rules if RULES.name_of(rule) == RULES.name_of(usual)]
    return [name for name in _told(usual) if len({told.get(name) for told in alike}) > 1]


def _told(rule: Rule) -> dict[str, Any]:
    """What a rule is told of malicious clients, by the name that --set knows: rule.tolerate, rule.rule.tolerate ..."""
    return {
        "rule." * depth + name: getattr(layer, name)
        for depth, layer in enumerate(RULES.layers(rule), 1)
        for name in layer.counts_malicious
        if hasattr(layer, name)
    }


def _trained(answer: Answer) -> Check:
    """Slow training hides harm: a model that has not learnt yet cannot lose much."""
    asked, if_no = "Was training over?", "training was not over"
    curves = [(one.test_error, one.rounds) for one in (answer.clean.results if answer.clean else ()) if len(one.test_error) > 3]
    if not curves:
        return Check(asked, NOT_MEASURED, "There is no run without attack that was evaluated four times.", if_no)
    gains = [errors[(3 * len(errors)) // 4 - 1] - errors[-1] for errors, _ in curves]
    gain = sum(gains) / len(gains)
    why = f"In the last quarter of the {curves[0][1][-1]} rounds the error without attack fell by {gain:.3f}."
    return Check(asked, _yes(gain <= STILL), why, if_no)


def _hard(answer: Answer) -> Check:
    """Where plain averaging survives too, the data are so easy that nothing is shown."""
    asked, if_no = "Do these attacks harm plain averaging?", "these attacks do not harm plain averaging either"
    rows = [*(answer.board.rows if answer.board else ()), *(row for _, board in answer.changed for row in board.rows)]
    found = [
        (point.error.mean, line.clean.error.mean, line.attack, point.malicious)
        for row in rows
        if row.name == CONTROL
        for line in row.lines
        for point in line.points
        if not line.idle and point.malicious and line.clean
    ]
    if not found:
        return Check(asked, NOT_MEASURED, f"{CONTROL} was not run: it is only tried where the rule breaks, or as a rival.", if_no)
    error, before, attack, many = max(found, key=lambda one: one[0] - one[1])
    said = f"Its error goes from {before:.3f} to {error:.3f} (attack {attack}, {many} of {answer.question.num_clients} clients)."
    return Check(asked, _yes(error - before > answer.question.threshold), said + " Data on which nothing is harmed show nothing.", if_no)
