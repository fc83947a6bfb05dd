"""Figures for papers, as PNG and PDF: each figure of the paper, and pictures of trust."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from fltrust.paper import Exhibit
from fltrust.report.agreement import Judged, Number, plain_error
from fltrust.report.layout import Grid, grids, telling
from fltrust.report.looks import COLOURS, look_of, looks_of_rules
from fltrust.report.survival import Board
from fltrust.store.results import Result, Results

COLUMN, PAGE = 3.5, 7.16  # inches: one column of a two-column paper, and both
PLAIN = "FedAvg, no attack"

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e2dfd9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.edgecolor": "#5a6470",
    "lines.linewidth": 1.3,
    "lines.markersize": 3.8,
    "pdf.fonttype": 42,  # letters stay letters
    "text.parse_math": False,
}


def draw(judged: dict[Exhibit, list[Judged]], results: Results) -> dict[str, bytes]:
    """Files and their content; an exhibit of which nothing ran has none."""
    content: dict[str, bytes] = {}
    with matplotlib.rc_context(_STYLE):
        for exhibit, cells in judged.items():
            if exhibit.kind != "table" and any(one.results for one in cells):
                content |= _saved(exhibit.name, _exhibit(exhibit, cells, results))
        for dataset, runs in telling(judged).items():
            content |= _saved(f"trust-{dataset}", _trust(runs))
    return content


def _saved(name: str, figure: Figure) -> dict[str, bytes]:
    """Without the date, so that the same results give the same file."""
    content = {}
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=200, metadata=metadata)
        content[f"figures/{name}.{kind}"] = file.getvalue()
    return content


def _exhibit(exhibit: Exhibit, cells: list[Judged], results: Results) -> Figure:
    pages = [page for page in grids(exhibit, cells) if any(one.results for one in page.cells)]
    kinds = ("error",) if exhibit.kind == "curves" else ("error", "success")
    panels = [(page, what) for page in pages for what in kinds if any(_number(one, what) for one in page.cells)]
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(COLUMN if across == 1 else PAGE, 3.1 if across == 1 else 1.75 * down + 0.65), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    top = max(one.error.mean + one.error.spread for one in cells if one.results)
    for axis, (page, what) in zip(axes, panels, strict=False):
        if exhibit.kind == "curves":
            _draw_curves(axis, exhibit, page)
        else:
            _draw_points(axis, exhibit, page, what, results)
            axis.set_ylim(0, 1.03 if what == "success" or top > 0.6 else top * 1.08)
        title = page.page if what == "error" else _backdoor(page, pages)
        axis.set_title(textwrap.fill(title, 90 // across), loc="left", fontweight="bold")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    curves = {label: handle for axis in axes[: len(panels)] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    names = sorted(curves, key=lambda label: label == PLAIN)  # the reference last
    handles = [curves[label] for label in names]
    if len(axes) > len(panels):
        axes[len(panels)].legend(handles, names, loc="center left", frameon=False)
    else:
        figure.legend(handles, names, loc="outside lower center", ncols=2 if across == 1 else 6 if len(names) <= 6 else 4, frameon=False)
    return figure


def _backdoor(page: Grid, pages: Sequence[Grid]) -> str:
    return f"{page.page}: backdoor" if len(pages) > 1 else "Scaling attack: backdoor"


def _number(one: Judged, what: str) -> Number | None:
    number = one.error if what == "error" else one.success
    return number if number and number.ours else None


def _draw_points(axis: Axes, exhibit: Exhibit, page: Grid, what: str, results: Results) -> None:
    for column in page.columns:
        line = [(one, number) for one in page.cells if one.cell.column == column and (number := _number(one, what))]
        if not line:
            continue
        look = look_of(exhibit, line[0][0].cell)
        axis.errorbar(
            [float(one.cell.row) for one, _ in line],
            [number.mean for _, number in line],
            yerr=[number.spread for _, number in line],
            label=column,
            color=COLOURS[look.colour][0],
            marker=look.marker,
            markersize=6 if look.marker == "*" else None,
            capsize=1.8,
            elinewidth=0.8,
            markeredgewidth=0,
        )
    plain = plain_error(page.cells[0].cell, results) if what == "error" else None
    if plain is not None:
        axis.axhline(plain, color="#8c96a1", linestyle=(0, (2, 2)), linewidth=1, label=PLAIN)
    places = sorted({float(row) for row in page.rows})
    room = (places[-1] - places[0]) / 14  # labels that would touch are left out
    axis.set_xticks(places, [f"{at:g}" if i == 0 or at - places[i - 1] > room else "" for i, at in enumerate(places)])
    axis.set_xlabel(exhibit.row)
    axis.set_ylabel("error" if what == "error" else "success")


def _draw_curves(axis: Axes, exhibit: Exhibit, page: Grid) -> None:
    for one in page.cells:
        if not one.results:
            continue
        look = look_of(exhibit, one.cell)
        rounds = sorted(set.intersection(*(set(result.rounds) for result in one.results)))
        curves = [dict(zip(result.rounds, result.train_error, strict=True)) for result in one.results]
        errors = np.array([[curve[t] for t in rounds] for curve in curves])  # (seeds, rounds)
        mean = errors.mean(0)
        style = (0, (4, 2)) if look.dashed else "-"
        axis.plot(rounds, mean, label=one.cell.column, color=COLOURS[look.colour][0], linestyle=style)
        if len(errors) > 1:
            spread = errors.std(0, ddof=1)
            axis.fill_between(rounds, mean - spread, mean + spread, color=COLOURS[look.colour][0], alpha=0.1, linewidth=0)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("round")
    axis.set_ylabel("training error")


# ---------------------------------------------------------------- what rules survive

BOARDS, ATTACKS, RULES = 6, 9, 10  # that a picture on paper can show; the page has all


def draw_boards(boards: Sequence[Board]) -> dict[str, bytes]:
    """Test error against malicious clients, a picture for each data set and setting with several numbers of them."""
    content: dict[str, bytes] = {}
    with matplotlib.rc_context(_STYLE):
        for board in [board for board in boards if len(board.tested) > 1][:BOARDS]:
            if (figure := _board(board)) is not None:
                content |= _saved(f"survival-{len(content) // 2 + 1}", figure)
    return content


def _board(board: Board) -> Figure | None:
    attacks = [attack for attack in board.attacks if any(line.attack == attack and not line.idle for line in board.lines)][:ATTACKS]
    rows = board.rows[:RULES]
    if not attacks:
        return None
    looks = looks_of_rules({row.rule: row.name for row in board.rows})
    across = min(3, len(attacks))
    down = -(-len(attacks) // across)
    figure = Figure(figsize=(COLUMN if across == 1 else PAGE, 2.1 * down + 0.8), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
    for axis, attack in zip(axes, attacks, strict=False):
        for row in rows:
            for line in (line for line in row.lines if line.attack == attack):
                look = looks[row.rule]
                axis.errorbar(
                    [point.malicious for point in line.points],
                    [point.error.mean for point in line.points],
                    yerr=[point.error.spread for point in line.points],
                    label=row.rule,
                    color=COLOURS[look.colour][0],
                    marker=look.marker,
                    linestyle="--" if look.dashed else "-",
                    capsize=1.8,
                    elinewidth=0.8,
                )
        axis.set_title(textwrap.shorten(attack, 40), loc="left", fontweight="bold")
        axis.set_ylim(bottom=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_xlabel(f"malicious clients, of {board.num_clients}")
    for axis in axes[::across]:
        axis.set_ylabel("test error")
    for axis in axes[len(attacks) :]:
        axis.set_axis_off()
    curves = {label: handle for axis in axes[: len(attacks)] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    names = [row.rule for row in rows if row.rule in curves]
    figure.legend([curves[name] for name in names], names, loc="outside lower center", ncols=2 if across == 1 else 5, frameon=False)
    figure.suptitle(textwrap.shorten(board.title, 80), x=0.01, ha="left", fontsize=9)
    return figure


# ---------------------------------------------------------------- trust


def _trust(runs: Sequence[tuple[str, Result]]) -> Figure:
    """Clients x rounds, malicious above and honest below; a client that is rejected has a colour of its own."""
    figure = Figure(figsize=(max(COLUMN, PAGE * len(runs) / 3), 2.9), layout="constrained")
    colours = LinearSegmentedColormap.from_list("trust", ["#deeaf5", "#084081"]).with_extremes(under="#f0aa78", bad="#ffffff")
    trusts = [np.array(result.trust, dtype=float).T for _, result in runs]  # (n, rounds)
    top = max(0.1, *(float(np.nanmax(trust)) for trust in trusts))
    parts = figure.subplots(2, len(runs), squeeze=False, sharex="col", gridspec_kw={"height_ratios": [0.3, 0.7], "hspace": 0.04})
    picture = None
    for column, ((attack, result), trust) in enumerate(zip(runs, trusts, strict=True)):
        m = result.run.malicious
        for axis, whose, rows in ((parts[0, column], "malicious", trust[:m]), (parts[1, column], "honest", trust[m:])):
            picture = axis.imshow(rows, aspect="auto", interpolation="nearest", cmap=colours, vmin=0.002, vmax=top)
            axis.grid(visible=False)
            axis.set_yticks([])
            axis.spines[:].set_visible(True)
            axis.set_ylabel(f"{len(rows)} {whose}", color=COLOURS["red"][0] if whose == "malicious" else "black")
        parts[0, column].tick_params(bottom=False)
        parts[0, column].set_title(f"{attack}, error {result.error:.3f}", loc="left", fontweight="bold")
        places = np.linspace(0, len(result.trust_rounds) - 1, 4).round().astype(int)
        parts[1, column].set_xticks(places, [f"{result.trust_rounds[place]}" for place in places])
        parts[1, column].set_xlabel("round")
    assert picture is not None
    bar = figure.colorbar(picture, ax=parts, extend="min", fraction=0.03, pad=0.01)
    bar.set_label("trust (orange: 0, rejected)")
    return figure
