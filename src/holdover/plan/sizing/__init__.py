"""The sizing plan: what any model's cache takes, on what device it fits, and what would make it.

`question.Question` is what a person asks, `solve.solve` answers it, `report` turns the answer into
the JSON from which tables, CSV and the page are made. Nothing here needs weights, torch or numpy
(numpy for `--lengths` only).
"""
