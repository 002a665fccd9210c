"""Bytes at rest: named objects, states as anchors, results by key, and an index over them.

Belongs here: reading and writing objects, their order and durability, what a damaged or missing one means.
Never here: running anything, clusters, users' code, pickles. Objects are the truth; the catalog can be deleted and
rebuilt. What a cached rerun reads (blobs, root, actions, runs, hits) imports the standard library and blake3 alone.
"""
