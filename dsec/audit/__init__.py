"""Reading the past: what runs did, and why a result is or is not there. Needs the store alone.

Belongs here: reports, explanations, later replay and comparison. Never here: Dask, or anything that runs users' code.
"""
