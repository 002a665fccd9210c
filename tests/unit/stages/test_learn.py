from __future__ import annotations

import pytest

from dsec.core.stage import StageCall
from dsec.errors import StageError
from tests.unit.runtime.serial import Serial, agent, out


def learnt(run: Serial) -> StageCall:
    begun = run.made("init.agent", "init_agent")
    collect = run.made("collect", "rollout", {"agent": out(begun, "agent")}, steps=(0, 15))
    return run.made("learn", "learn", {"agent": out(collect, "agent"), "batch": out(collect, "batch")})


def test_learning_gives_a_new_agent_and_its_scalars_as_stats(run: Serial) -> None:
    call = learnt(run)
    assert set(run.result(call).stats) == {"loss", "batches"}
    assert run.tree(call, "metrics")["curve"].tolist() == [0.0, 1.0, 2.0]
    assert run.tree(call, "agent")["kind"] == "agent"


def test_learning_needs_no_environment(run: Serial) -> None:
    begun = run.made("init.agent", "init_agent")
    collect = run.made("collect", "rollout", {"agent": out(begun, "agent")}, steps=(0, 15))
    call = run.made("learn", "learn", {"agent": out(collect, "agent"), "batch": out(collect, "batch")}, env=None)
    assert run.result(call).outputs == run.result(learnt(run)).outputs


@pytest.mark.parametrize(
    ("name", "message"), [("Owner", r"has no learn\(batch\)"), ("Stumbler", "agent.learn returned list")]
)
def test_an_agent_that_cant_learn_says_so(run: Serial, name: str, message: str) -> None:
    run.session["agent"] = agent(name)
    with pytest.raises(StageError, match=f"^learn: .*{message}"):
        learnt(run)
