"""What each verb prints on stdout, and with which status it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dsec
from dsec.cli.main import main
from dsec.core.stage import ActionKey, StageResult
from dsec.engine import events
from dsec.errors import CorruptObject, Interrupted, PlanError, StageError, StoreFull, Unsatisfiable
from tests.unit.cli.fake_api import DETAILS, PROBLEM, FakeApi, run_row, summary


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Lines of stdout as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


Call = Callable[..., Ended]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    fake = FakeApi(summary=summary())
    monkeypatch.setitem(sys.modules, "dsec.api", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(dsec, "api", fake, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSEC_STORE", raising=False)
    (tmp_path / ".git").mkdir()
    return fake


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def ended(*argv: str) -> Ended:
        with pytest.raises(SystemExit) as stop:
            main(argv)
        code = stop.value.code
        assert isinstance(code, int)
        return Ended(code, *capsys.readouterr())

    return ended


def test_run_prints_its_tables_and_where_to_look_next(api: FakeApi, call: Call) -> None:
    ended = call("run", "p.yaml")
    assert ended.status == 0
    assert "487.25" in ended.out
    assert "dsec show 20260131-120000-7f3a9c" in ended.err
    assert "dsec why table p.yaml" in ended.err
    assert "126 calls: 126 ran, 0 cached" in ended.err


def test_what_to_look_at_next_carries_store_and_params(api: FakeApi, call: Call) -> None:
    err = call("run", "p.yaml", "-p", "n=2", "--store", "/tmp/store").err
    assert "dsec show 20260131-120000-7f3a9c --store /tmp/store\n" in err
    assert "dsec why table p.yaml -p n=2 --store /tmp/store\n" in err


def test_run_passes_its_options_on(api: FakeApi, call: Call, tmp_path: Path) -> None:
    words = "run p.yaml -p n=60 --select eval* --select train* --workers cpu=2,gpu=1 --fail-fast --durability strict"
    call(*words.split(), "--store", str(tmp_path / "s"))
    (_, _, params), (_, _, options) = api.asked
    assert params == {"n": 60}
    assert options["select"] == ("eval*", "train*")
    assert (options["shape"].cpu, options["shape"].gpu) == (2, 1)
    assert options["fail_fast"] is True
    assert options["durability"] == "strict"
    assert options["store"] == tmp_path / "s"


def test_the_store_comes_from_the_environment(api: FakeApi, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEC_STORE", "/tmp/elsewhere")
    call("run", "p.yaml")
    assert api.asked[-1][2]["store"] == Path("/tmp/elsewhere")


def test_the_last_line_of_run_json_is_the_agreed_one(api: FakeApi, call: Call) -> None:
    api.events = (
        events.Resolved({"eval": 1}),
        events.Finished("eval", "eval", StageResult(ActionKey("a")), 1.0, True),
    )
    ended = call("run", "p.yaml", "--json")
    assert [line["event"] for line in ended.objects] == ["resolved", "finished", "run-finished"]
    assert ended.out.splitlines()[-1] == (
        '{"event": "run-finished", "run": "20260131-120000-7f3a9c", "calls": 126, "hits": 0, "ran": 126, "failed": 0, '
        '"seconds": 98.235, "cluster": true}'
    )


def test_a_failed_stage_ends_with_1_its_error_and_the_command_that_continues(api: FakeApi, call: Call) -> None:
    error = StageError("ValueError: no", instance="eval@seed=0", step=3)
    api.summary = summary(failed=2, skipped=1, ran=123, errors=(error,), status="failed", tables=())
    ended = call("run", "p.yaml", "-p", "n=3")
    assert ended.status == 1
    assert "error[stage]: eval@seed=0 at step 3: ValueError: no" in ended.err
    assert "1 more failed instance" in ended.err
    assert ended.err.splitlines()[-1] == "to continue: dsec run p.yaml -p n=3"
    ended = call("run", "p.yaml", "--json")
    assert ended.status == 1
    assert [line["event"] for line in ended.objects] == ["error", "run-finished"]
    assert ended.objects[0]["instance"] == "eval@seed=0"


def test_a_result_that_contradicts_its_name_ends_with_3(api: FakeApi, call: Call) -> None:
    api.summary = summary(failed=1, errors=(StageError("no"), CorruptObject("bytes differ")))
    assert call("run", "p.yaml").status == 3


@pytest.mark.parametrize("error", [StoreFull("full"), Unsatisfiable("no gpu"), Interrupted("stopped")])
def test_a_run_that_is_stopped_says_so_in_both_streams(api: FakeApi, call: Call, error: Any) -> None:
    api.run_error = error
    ended = call("run", "p.yaml", "--json")
    assert ended.status == error.exit_code
    assert ended.objects[-1]["code"] == error.code
    assert ended.err.splitlines()[-1] == "to continue: dsec run p.yaml --json"


def test_an_interrupted_run_that_came_to_its_summary_is_told_once(api: FakeApi, call: Call) -> None:
    api.summary = summary(status="stopped", errors=(Interrupted("stopped by the user"),), tables=())
    ended = call("run", "p.yaml")
    assert ended.status == 130
    assert ended.err.count("error[interrupted]") == 1
    assert ended.err.splitlines()[-1] == "to continue: dsec run p.yaml"


def test_ctrl_c_ends_with_130(api: FakeApi, call: Call) -> None:
    api.run_error = KeyboardInterrupt()
    ended = call("run", "p.yaml")
    assert ended.status == 130
    assert ended.err.splitlines()[-1] == "to continue: dsec run p.yaml"


def test_a_wrong_plan_ends_with_2_and_its_frame(api: FakeApi, call: Call) -> None:
    api.load_error = PlanError([PROBLEM])
    ended = call("run", "p.yaml")
    assert ended.status == 2
    assert ended.err.splitlines()[0] == "p.yaml:3:5: error[unknown-key]: unknown key 'need'"
    assert "^^^^ did you mean 'needs'?" in ended.err
    assert ended.err.splitlines()[-1] == "when corrected: dsec run p.yaml"
    assert ended.out == ""


def test_a_wrong_param_names_its_option(api: FakeApi, call: Call) -> None:
    ended = call("run", "p.yaml", "-p", "seeds=[1")
    assert ended.status == 2
    assert "-p seeds=[1: a list was opened" in ended.err


def test_workers_of_an_existing_cluster_are_not_ours_to_count(api: FakeApi, call: Call) -> None:
    ended = call("run", "p.yaml", "--workers", "cpu=1", "--scheduler", "tcp://127.0.0.1:8786")
    assert ended.status == 2
    assert "exclude each other" in ended.err


def test_quiet_says_nothing_on_stderr(api: FakeApi, call: Call) -> None:
    api.events = (events.Submitted({"eval": 1}),)
    assert call("run", "p.yaml", "--quiet").err == ""


def test_check_says_ok(api: FakeApi, call: Call) -> None:
    ended = call("check", "a.yaml", "b.yaml", "--static")
    assert (ended.status, ended.out) == (0, "a.yaml: ok\nb.yaml: ok\n")
    assert ("check", "a.yaml", False) in api.asked


@pytest.mark.parametrize("where", ["load", "check"])
def test_check_tells_problems_in_each_format(api: FakeApi, call: Call, where: str) -> None:
    if where == "load":
        api.load_error = PlanError([PROBLEM])
    else:
        api.problems = (PROBLEM,)
    ended = call("check", "p.yaml")
    assert ended.status == 2
    assert ended.err.startswith("p.yaml:3:5: error[unknown-key]")
    assert ended.err.splitlines()[-1] == "1 problem; when corrected: dsec check p.yaml"
    ended = call("check", "p.yaml", "--json")
    assert ended.status == 2
    assert ended.objects[0]["line"] == 3
    assert ended.objects[-1] == {"event": "check-finished", "plan": "p.yaml", "problems": 1}
    ended = call("check", "p.yaml", "--format", "github")
    assert ended.out.startswith("::error file=p.yaml,line=3,col=5,title=unknown-key::unknown key 'need'")


def test_plan_shows_what_would_run_and_why(api: FakeApi, call: Call) -> None:
    ended = call("plan", "p.yaml")
    assert "62 calls: 30 cached, 32 to run" in ended.out
    assert "with.lr: 3e-4 -> 1e-3" in ended.out
    assert "note: class unknown, all to run" in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    (shown,) = call("plan", "p.yaml", "--json").objects
    assert (shown["calls"], shown["hits"], shown["to_run"]) == (62, 30, 32)
    assert shown["stages"][0]["reason"] == "with.lr: 3e-4 -> 1e-3"


def test_why_names_the_reasons(api: FakeApi, call: Call) -> None:
    ended = call("why", "train@seed=0#17/learn", "p.yaml")
    assert ended.out.splitlines()[0] == "train@seed=0#17/learn: to run"
    assert "  code: helpers/gae.py:LAMBDA changed" in ended.out
    (shown,) = call("why", "train@seed=0#17/learn", "p.yaml", "--json").objects
    assert shown["status"] == "to run"
    assert len(shown["reasons"]) == 2


def test_why_without_a_plan_takes_that_of_the_newest_run(api: FakeApi, call: Call, tmp_path: Path) -> None:
    (tmp_path / ".dsec").mkdir()
    (tmp_path / "ppo.yaml").touch()
    api.rows = (run_row(path=str(tmp_path / "ppo.yaml"), params={"iterations": 2}),)
    assert call("why", "eval").status == 0
    assert api.asked[-1][:2] == ("why", "ppo.yaml")
    api.rows = ()
    ended = call("why", "eval")
    assert ended.status == 2
    assert "no run is in" in ended.err


def test_graph_draws(api: FakeApi, call: Call) -> None:
    assert call("graph", "p.yaml").out == "text: collect -> learn\n"
    assert call("graph", "p.yaml", "--format", "mermaid").out == "mermaid: collect -> learn\n"
    (shown,) = call("graph", "p.yaml", "--json").objects
    assert shown["plan"] == "ppo"


def test_runs_are_listed(api: FakeApi, call: Call, tmp_path: Path) -> None:
    (tmp_path / ".dsec").mkdir()
    assert "start one with: dsec run" in call("runs").out
    api.rows = (run_row(), run_row(seconds=None, status="running"))
    ended = call("runs")
    assert "20260131-120000-7f3a9c" in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    assert [row["status"] for row in call("runs", "--json").objects] == ["done", "running"]


def test_runs_without_a_store_are_a_named_error(api: FakeApi, call: Call) -> None:
    ended = call("runs")
    assert ended.status == 2
    assert "there is no store at" in ended.err


def test_show_prints_a_run(api: FakeApi, call: Call, tmp_path: Path) -> None:
    (tmp_path / ".dsec").mkdir()
    ended = call("show", "20260131", "--instances", "train*")
    assert ended.status == 0
    assert "train.learn" in ended.out
    assert "ValueError: no" in ended.out
    assert "loss=0.12346" in ended.out
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    assert call("show", "2026", "--json").objects == [DETAILS]
    assert call("show", "nothing").status == 2


def test_schema_is_json(api: FakeApi, call: Call) -> None:
    assert json.loads(call("schema").out) == {"title": "plan"}
    assert call("schema", "--json").objects == [{"title": "plan"}]


def test_init_lists_what_it_made(api: FakeApi, call: Call, tmp_path: Path) -> None:
    ended = call("init", "first")
    assert ended.out.splitlines()[-1] == "next: cd first && dsec run plans/first.yaml"
    assert call("init", "first", "--json").objects[0]["files"] == ["first/pyproject.toml", "first/first.txt"]


def test_worker_joins_a_scheduler(api: FakeApi, call: Call) -> None:
    assert call("worker", "tcp://127.0.0.1:8786", "--kind", "gpu").status == 0
    assert api.asked == [("worker", "tcp://127.0.0.1:8786", "gpu")]


def test_version_names_what_a_report_needs(call: Call) -> None:
    assert "dask" in call("version").out
    assert set(call("version", "--json").objects[0]) > {"dsec", "python", "torch"}
