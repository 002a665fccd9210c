"""Libraries of environments as the runtime's contract sees them; found by name, imported by nothing.

Belongs here: one module for each library, and what several of them share.
Never here: the loop, the store, plans.
"""
