"""`fltrust watch`: a live page of a running or finished run. It only reads the run directory, so it cannot disturb the run."""
