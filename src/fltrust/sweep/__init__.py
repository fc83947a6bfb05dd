"""A sweep: experiments on a grid, declared in a TOML file or by options."""

from fltrust.sweep.grid import Grid, LeftOut, Plan, grid_of, plan

__all__ = ["Grid", "LeftOut", "Plan", "grid_of", "plan"]
