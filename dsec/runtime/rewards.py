"""Reward functions by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, cast

from dsec.core.specs import RewardSpec
from dsec.errors import DsecError
from dsec.runtime import failures, names
from dsec.runtime.protocols import RewardFn

__all__ = ["load_reward"]


def load_reward(spec: RewardSpec | None, config: Mapping[str, Any]) -> RewardFn | None:
    """The reward function of a session; None where it is the environment's own.

    A function gets ``with`` as keywords at each call, a class once, to make what is called.

    Parameters
    ----------
    spec
        What names it.
    config
        Its ``with``, declared files as paths.
    """
    if spec is None:
        return None
    found = names.resolve(spec.code.uses, "reward")
    if not inspect.isclass(found):
        return cast(RewardFn, functools.partial(found, **config) if config else found)
    try:
        return cast(RewardFn, found(**config))
    except DsecError:
        raise
    except Exception as error:
        raise failures.failed(f"reward {spec.code.uses}", error) from error
