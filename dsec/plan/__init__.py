"""What people write, and what it means: YAML to ExecutionPlan to calls.

Belongs here: reading with positions, the schema, expressions, references, static checks, expansion.
Never here: the store, clusters, imports of users' code (check.py starts a subprocess for that).
"""
