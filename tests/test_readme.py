"""What README shows is true: its rule of one's own obeys the laws and runs from the command line's own code."""

import re
from pathlib import Path

import pytest
from conftest import small_task

from fltrust.experiment import Experiment
from fltrust.registry import RULES, load_plugin
from fltrust.simulation import simulate
from fltrust.testing import check_rule

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_rule_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (snippet,) = re.findall(r"```python\n(from dataclasses import dataclass\n.*?)```", README, re.DOTALL)
    (tmp_path / "my_rules.py").write_text(snippet)
    monkeypatch.setattr(RULES, "_entries", dict(RULES._entries))  # no other test sees it
    load_plugin(tmp_path / "my_rules.py")
    rule = RULES.entry("slow").kind()
    check_rule(rule)
    fields = {"num_clients": 6, "clients_per_round": 6, "malicious": 0, "batch_size": 4, "rounds": 2, "global_lr": 0.05, "loss": "mean"}
    run = Experiment(dataset="small", model="own", rule=rule, **fields)
    last = list(simulate(run, small_task()))[-1]
    assert last.state is not None
    assert last.state.rule.any()  # it remembers
