"""What a plan may say about a ready-made body is what the body takes."""

from __future__ import annotations

import inspect

import pytest

from dsec.core.bodies import BODIES
from dsec.runtime import names


@pytest.mark.parametrize("uses", sorted(BODIES))
def test_a_body_takes_what_its_traits_say(uses: str) -> None:
    traits = BODIES[uses]
    _, *parameters = inspect.signature(names.resolve(uses, "body")).parameters.values()
    taken = {"**" if it.kind is it.VAR_KEYWORD else it.name: it for it in parameters}
    assert set(taken) == {*traits.inputs, *traits.config}
    for name, required in traits.inputs.items():
        assert name == "**" or required == (taken[name].default is inspect.Parameter.empty)
    for name in traits.config:
        assert taken[name].default is not inspect.Parameter.empty
