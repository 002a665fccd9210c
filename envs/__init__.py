"""Environments that come with DSec, one folder each; installed as the package ``dsec_envs``.

A plan names them ``dsec_envs.<folder>:<Class>``. They count as first-party code: editing one reruns what uses it.
"""
