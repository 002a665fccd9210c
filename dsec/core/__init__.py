"""Pure values: what a result is, and what names it.

Belongs here: canonical bytes, keys, seeds, specs, sessions, state trees, calls and their results.
Never here: input or output, clocks, clusters, torch, Dask.
"""
