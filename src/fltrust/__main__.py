"""`python -m fltrust` is `fltrust`."""

from fltrust.cli import main

main()
