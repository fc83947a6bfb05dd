"""Kernels that make the rules fast on one kind of hardware each; the plain torch code in `fltrust.rules` is their twin."""
