"""Runs one stage: the environment, the agent, the loop between them, and the body that a plan names.

Belongs here: contracts of users' code, numerics, the loop, its trace, and `run_stage`.
Never here: scheduling, keys of other calls, plans, libraries of environments (those are adapters).
"""
