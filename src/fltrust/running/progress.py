"""How far one run or many runs are. A terminal shows a bar; a pipe or a log file gets a line every few seconds."""

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fltrust.errors import printable

SECONDS = 5.0  # between two lines
BAR = 40  # letters, on a screen that is wide enough


class Progress:
    """Shows a share that is done, a count in words, the time left and the latest news. At 60 columns all but the news stay whole."""

    def __init__(self, screen: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen, self._clock = screen, clock
        self._name, self._count, self._news, self._done = "", "", "", 0.0
        self._pace_from: tuple[float, float] | None = None  # time and share after the first step, which compiles and loads
        self._live = Live(get_renderable=self._shown, console=screen, transient=True) if screen.is_terminal else None

    def start(self, name: str, done: float = 0.0) -> None:
        """`done`: the share that an earlier program did."""
        self._name, self._done, self._pace_from = name, done, None
        self._said = self._clock()
        if self._live:
            self.say(name)
            self._live.start()

    def update(self, done: float, count: str, news: str = "") -> None:
        self._done, self._count, self._news = done, count, news
        self._pace_from = self._pace_from or (self._clock(), done)
        if self._live is None and self._clock() - self._said >= SECONDS:
            self._said = self._clock()
            line = f"{count}{self._left(', ')}" + (f": {news}" if news else "")
            self.say(f"{self._name}: {line}" if self._name else line)

    def say(self, line: str) -> None:
        """A line that stays, above the bar if there is one."""
        if line:
            self._screen.print(printable(line), highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()

    def _left(self, before: str = "") -> str:
        """The time that the rest takes at the pace so far."""
        began, first = self._pace_from or (0.0, self._done)
        if self._done <= first or self._done >= 1:
            return ""
        seconds = round((self._clock() - began) / (self._done - first) * (1 - self._done))
        return f"{before}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"

    def _shown(self) -> Group:
        row = Table.grid(padding=(0, 1))
        row.add_column()  # the bar gives way on a narrow screen
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_row(ProgressBar(total=1.0, completed=self._done, width=BAR), self._count, self._left())
        return Group(row, Text(self._news, no_wrap=True, overflow="ellipsis"))
