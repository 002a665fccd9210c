"""Driving the present: what runs next, where, and what happens when it fails. The only home of Dask.

`resolve`, `window`, `policy`, `events`, `borders` and `drive` import neither Dask nor numpy, so a run that finds all
its results in the store never pays for them. `lower`, `submit`, `cluster`, `plugins` and `preload` are the Dask side.
Nothing here may change what comes out, only when and where it is made.
"""
