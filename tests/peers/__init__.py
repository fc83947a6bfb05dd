"""An audit of baselines: our rules and attacks beside those of other packages, on the same rows. `make baselines` writes docs/baselines.md.

draws.py       the rows, by name and seed
comparison.py  one rule of one peer beside ours, and what is measured
packages.py    one module of an installed package, without the rest of it
flower.py ...  what each peer calls its rules; nothing of a peer is copied here
shortest.py    the search for the shortest input that shows a difference; what it found is in shortest.json
page.py        the tables
"""
