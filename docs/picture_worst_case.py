"""Draws docs/worst-case.png from results/: python docs/picture_worst_case.py"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
LINES = {  # rule's name, momentum, voice, limit: label, colour, line, how far the label is lifted
    ("fltrust", None, None, None): ("FLTrust", "#0072B2", "-", 4),
    ("anchor", 0.9, 1.0, 30.0): ("Anchor", "#D55E00", "-", 0),
    ("anchor", 0.0, 1.0, 30.0): ("Anchor without memory", "#CC79A7", "--", 0),
    ("anchor", 0.9, 0.0, 30.0): ("Anchor without voice", "#555555", ":", 0),
    ("anchor", 0.9, 1.0, 1.0): ("Anchor, limit 1", "#009E73", "-.", 0),
}


def main() -> None:
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for path in sorted((HERE.parent / "results" / "mnist-0.5").glob("*-searched-*.json")):
        result = json.loads(path.read_text())
        run, rule = result["experiment"], result["experiment"]["rule"]
        drawn = (run["attack"]["aim"], run["malicious"], run["seed"]) == ("mean", 20, 0)
        line = LINES.get((rule["name"], rule.get("momentum"), rule.get("voice"), rule.get("limit"))) if drawn else None
        if line is None:
            continue
        label, colour, style, lift = line
        rounds, errors = result["rounds"], result["test_error_curve"]
        axes.plot(rounds, errors, color=colour, linestyle=style, linewidth=2)
        said, end = f"{label}: {errors[-1]:.3f}", (rounds[-1], errors[-1])
        axes.annotate(said, end, xytext=(6, lift), textcoords="offset points", color=colour, va="center", fontsize=9)
    axes.set(xlabel="round", ylabel="test error", xlim=(0, 2000), ylim=(0, 0.95))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.subplots_adjust(left=0.08, right=0.72, bottom=0.15, top=0.96)
    figure.savefig(HERE / "worst-case.png", dpi=110)


if __name__ == "__main__":
    main()
