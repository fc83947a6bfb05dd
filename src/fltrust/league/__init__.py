"""The league: every rule against every attack of the set, on four data sets, as data. `table.py` has the lists."""

from fltrust.league.plan import Cell, cells, chosen, plan
from fltrust.league.table import BOARDS, COLUMNS, ROWS, Board, Column, Row

__all__ = ["BOARDS", "COLUMNS", "ROWS", "Board", "Cell", "Column", "Row", "cells", "chosen", "plan"]
