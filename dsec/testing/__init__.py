"""Contracts as test classes, and small fakes; for DSec's own tests and for those of its users.

Belongs here: what a test subclasses or instantiates.
Never here: anything the product imports.
"""
