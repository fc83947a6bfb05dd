"""Docstrings are plain text with formulas such as |x|, x_i * y and sum_i: signs that reStructuredText would read as markup are escaped."""

import re
from typing import Any

from sphinx.application import Sphinx


def setup(application: Sphinx) -> dict[str, bool]:
    application.connect("autodoc-process-docstring", escape, priority=400)  # before napoleon
    return {"parallel_read_safe": True}


def escape(_application: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    example = False
    for number, line in enumerate(lines):
        example = line.lstrip().startswith((">>>", "...")) or (example and bool(line.strip()))
        if not example:
            parts = re.split(r"(`[^`]*`)", line)  # what stands in backticks stays as it is
            lines[number] = "".join(
                part if place % 2 else re.sub(r"([|*])|(?<=\w)(_)(?=\W|$)", r"\\\1\2", part) for place, part in enumerate(parts)
            )
