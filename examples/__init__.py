"""Agents, rewards and environments to copy from: each file stands alone."""
