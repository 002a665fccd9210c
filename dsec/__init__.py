"""DSec: reinforcement-learning experiments as deterministic dataflow on Dask.

The folders are the story of a run: `plan` compiles what a person wrote, `code` fingerprints what it names, `engine`
drives a Dask cluster, `runtime` runs one stage on a worker, `store` keeps every state as an anchor, and `api` is
the one door to all of it.
"""
