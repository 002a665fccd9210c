from __future__ import annotations

import numpy as np
import pytest

from dsec.errors import StageError
from tests.unit.runtime.serial import LAB, Serial, agent, env, out, reward


def test_scores_are_returns_of_whole_episodes(run: Serial) -> None:
    begun = run.made("init.agent", "init_agent")
    call = run.made("eval", "evaluate", {"agent": out(begun, "agent")}, config={"episodes": 4})
    score, trace, stats = run.tree(call, "score"), run.tree(call, "trace"), run.result(call).stats
    assert score["returns"].dtype == np.float64 and score["returns"].shape == (4,)
    assert score["lengths"].sum() == len(trace["reward"]) == score["returns"].sum()
    assert trace["episode"].tolist() == np.repeat(np.arange(4), score["lengths"]).tolist()
    assert stats["return_mean"] == score["returns"].mean()
    assert (stats["return_min"], stats["return_max"]) == (score["returns"].min(), score["returns"].max())
    assert stats["episodes"] == 4


def test_episodes_are_the_same_whatever_the_agent_has_drawn_before(run: Serial) -> None:
    run.session["agent"] = agent("Owner")
    begun = run.made("init.agent", "init_agent")
    later = run.made("collect", "rollout", {"agent": out(begun, "agent")}, steps=(0, 99))
    found = [
        run.tree(run.made("eval", "evaluate", {"agent": out(call, "agent")}, config={"episodes": 3}), "score")
        for call in (begun, later)
    ]
    assert found[0]["returns"].tolist() == found[1]["returns"].tolist()


def test_more_episodes_begin_with_those_there_were(run: Serial) -> None:
    begun = run.made("init.agent", "init_agent")
    given = {"agent": out(begun, "agent")}
    calls = [run.made("eval", "evaluate", given, config={"episodes": count}) for count in (2, 4)]
    returns = [run.tree(call, "score")["returns"] for call in calls]
    assert returns[0].tolist() == returns[1][:2].tolist()


def test_an_episode_is_cut_at_the_most_steps(run: Serial) -> None:
    begun = run.made("init.agent", "init_agent")
    config = {"episodes": 2, "max_episode_steps": 5}
    call = run.made("eval", "evaluate", {"agent": out(begun, "agent")}, config=config)
    assert run.tree(call, "score")["lengths"].tolist() == [5, 5]


def test_the_reward_function_scores(run: Serial) -> None:
    begun = run.made("init.agent", "init_agent")
    call = run.made("eval", "evaluate", {"agent": out(begun, "agent")}, reward=reward("Offset", by=1.0))
    score = run.tree(call, "score")
    assert (score["returns"] == 2.0 * score["lengths"]).all()


def test_a_vectorized_agent_sees_batches_of_one(run: Serial) -> None:
    run.session |= {"agent": agent("Batcher"), "env": env(num_envs=3)}
    begun = run.made("init.agent", "init_agent")
    call = run.made("eval", "evaluate", {"agent": out(begun, "agent")}, config={"episodes": 2})
    assert run.tree(call, "score")["returns"].shape == (2,)


def test_an_environment_without_spaces_works_too(run: Serial) -> None:
    run.session |= {"agent": agent("Owner"), "env": env(f"{LAB}:Counting")}
    begun = run.made("init.agent", "init_agent")
    call = run.made("eval", "evaluate", {"agent": out(begun, "agent")}, config={"episodes": 2})
    assert run.tree(call, "score")["lengths"].tolist() == [5, 5]


def test_no_episodes_are_no_evaluation(run: Serial) -> None:
    begun = run.made("init.agent", "init_agent")
    with pytest.raises(StageError, match="eval: episodes is 0"):
        run.made("eval", "evaluate", {"agent": out(begun, "agent")}, config={"episodes": 0})
