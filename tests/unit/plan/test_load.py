"""Good plans load; spec files, declared files, columns, overrides mean what the format says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsec.core import canon
from dsec.errors import PlanError, UsageError
from dsec.plan import schema
from dsec.plan.check import check
from dsec.plan.kinds import DeclaredFile, with_digests
from dsec.plan.load import load_plan, parse_value, project_root, read
from dsec.plan.reference import StageRef
from dsec.plan.units import Steps
from dsec.plan.values import Expr

GOOD = Path(__file__).parent / "good"
STAGES = 'stages:\n  go: {uses: "dsec.stages:rollout", steps: 0-9}\n'


def plan_of(text: str, path: Path | str = "plan.yaml") -> schema.ExecutionPlan:
    return load_plan(path, text)[0]


def refusal(text: str, path: Path | str = "plan.yaml") -> str:
    with pytest.raises(PlanError) as caught:
        load_plan(path, text)
    return str(caught.value)


@pytest.mark.parametrize("name", ["cartpole", "vision", "coupons"])
def test_examples_of_the_format_load(name: str) -> None:
    plan, document = load_plan(GOOD / f"{name}.yaml")
    found = check(plan, document)
    later = 2 if name == "coupons" else 0
    assert [problem.code for problem in found] == ["not-supported-yet"] * later


def test_units_are_seconds_and_bytes() -> None:
    plan = load_plan(GOOD / "coupons.yaml")[0]
    assert plan.services["risk"].timeout == 2.0
    risk = plan.services["risk"].on_slow
    assert risk is not None and risk.above == pytest.approx(0.2)
    vision = load_plan(GOOD / "vision.yaml")[0]
    assert vision.resources["vision"].vram == 24 * 2**30
    assert vision.stages["encode"].steps == Steps(101, 500)


def test_a_column_of_a_file_becomes_texts_in_order() -> None:
    plan = load_plan(GOOD / "coupons.yaml")[0]
    assert plan.matrix is not None
    segments = plan.matrix.axes["segment"].cells({})
    assert (len(segments), segments[0], segments[-1]) == (287, "s000", "s286")


def test_a_spec_file_equals_the_inline_form(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"w")
    (tmp_path / "a.agent.yaml").write_text("uses: a.b:Agent\nwith: {lr: 1e-3, w: {file: w.bin}}\nfiles: [w.bin]\n")
    head = "dsec: 1\nname: x\n"
    inline = '{uses: "a.b:Agent", with: {lr: 1e-3, w: {file: w.bin}}, files: [w.bin]}'
    one = plan_of(f"{head}session: {{agent: a.agent.yaml}}\n{STAGES}", tmp_path / "p.yaml").session
    two = plan_of(f"{head}session: {{agent: {inline}}}\n{STAGES}", tmp_path / "p.yaml").session
    assert one == two


def test_paths_are_relative_to_the_file_they_stand_in(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "w.bin").write_bytes(b"w")
    (tmp_path / "agents" / "a.agent.yaml").write_text("uses: a.b:Agent\nwith: {w: {file: w.bin}}\n")
    plan = plan_of(f"dsec: 1\nname: x\nsession: {{agent: agents/a.agent.yaml}}\n{STAGES}", tmp_path / "p.yaml")
    assert plan.session is not None and plan.session.agent is not None
    weights = plan.session.agent.with_["w"]
    assert weights == DeclaredFile("w.bin", tmp_path / "agents" / "w.bin", canon.blob_digest(b"w"), 1)
    assert with_digests(plan.session.agent.with_) == {"w": {"file": "w.bin", "digest": canon.blob_digest(b"w")}}


def test_a_problem_in_a_spec_file_stands_there(tmp_path: Path) -> None:
    (tmp_path / "a.agent.yaml").write_text("uses: a.b:Agent\nlr: 3\n")
    found = refusal(f"dsec: 1\nname: x\nsession: {{agent: a.agent.yaml}}\n{STAGES}", tmp_path / "p.yaml")
    assert f"{tmp_path}/a.agent.yaml:2:1: error[unknown-key]: unknown key 'lr'" in found


def test_files_have_names_and_digests(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes(b"")
    stages = "  a: {uses: 'a.b:c', files: [p.csv]}\n  b: {uses: 'a.b:c', files: {prices: p.csv}}\n"
    text = f"dsec: 1\nname: x\nstages:\n{stages}"
    plan = plan_of(text, tmp_path / "plan.yaml")
    assert list(plan.stages["a"].files) == ["p.csv"]
    assert plan.stages["b"].files["prices"].digest == canon.blob_digest(b"")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    text = "dsec: 1\nname: x\nstages:\n  a: {uses: 'a.b:c', files: [.]}\n"
    assert "5:" not in refusal(text, tmp_path / "p.yaml")
    assert "can't be read: not a regular file" in refusal(text, tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id\n", "has no rows"),
        (b"", "has no column 'id'"),
        (b"idd\n1\n", "did you mean 'idd'?"),
        (b"id\na\nb\na\n", "s.csv:4 has 'a' again; first at line 2"),
        (b"id,x\n1,2\n,3\n", "s.csv:3 has nothing in column 'id'"),
        (b"id\n\xff\n", "s.csv:2 is not UTF-8"),
        (b'id\n"a', "is not CSV"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "s.csv").write_bytes(content)
    text = f"dsec: 1\nname: x\nmatrix: {{a: {{file: s.csv, column: id}}}}\n{STAGES}"
    assert said in refusal(text, tmp_path / "p.yaml")


def test_expressions_are_kept_with_their_place() -> None:
    plan = plan_of("dsec: 1\nname: x\nparams: {n: 3}\nstages:\n  a: {uses: 'a.b:c', with: {n: '${{ params.n }}'}}\n")
    found = plan.stages["a"].with_["n"]
    assert isinstance(found, Expr)
    assert (found.text, found.span.line, found.span.column) == ("params.n", 5, 32)


def test_free_keys_are_left_alone() -> None:
    free = "x-any: {a: 'part ${{ of }} text', b: &r {worker: gpu}}"
    text = f"dsec: 1\nname: x\n{free}\nresources: {{r: *r}}\n{STAGES}"
    assert plan_of(text).resources["r"].worker == "gpu"


def test_overrides_replace_params() -> None:
    plan = load_plan(GOOD / "cartpole.yaml", overrides=["iterations=60", "seeds=[1, 2, 3]"])[0]
    assert schema.parameters(plan) == {"iterations": 60, "steps": 1024, "seeds": [1, 2, 3]}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("iteration=3", "did you mean 'iterations'?"),
        ("iterations", "expected name=value"),
        ("iterations=[1", "is not closed here"),
        ("iterations=012", "octal"),
    ],
)
def test_wrong_overrides_are_usage_errors(override: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_plan(GOOD / "cartpole.yaml", overrides=[override])
    assert said in str(caught.value)


def test_params_read_those_above_them() -> None:
    plan = plan_of(f"dsec: 1\nname: x\nparams: {{a: 2, b: '${{{{ params.a * 3 }}}}'}}\n{STAGES}")
    assert schema.parameters(plan) == {"a": 2, "b": 6}


def test_values_of_the_command_line_are_yaml() -> None:
    assert [parse_value(text) for text in ("60", "[0, 1]", "true", "on", "1e-3")] == [60, [0, 1], True, "on", 1e-3]


def test_settle_gives_types_or_a_located_error() -> None:
    plan = load_plan(GOOD / "cartpole.yaml")[0]
    assert plan.session is not None
    scope = {"params": {"iterations": 3, "steps": 4}, "matrix": {"seed": 7}}
    settled = schema.settle(plan.session, scope)
    assert (settled.seed, settled.max_steps) == (7, 12)
    from dsec.plan.values import ExprError

    with pytest.raises(ExprError, match="seed is 'a', expected a whole number") as caught:
        schema.settle(plan.session, {**scope, "matrix": {"seed": "a"}})
    assert (caught.value.span.line, caught.value.span.column) == (8, 9)


def test_positions_are_found_by_path() -> None:
    document = read(GOOD / "cartpole.yaml")
    assert document.key(("stages", "train", "iterate"))[1:3] == (13, 5)
    assert document.value(("session", "agent", "with", "lr"))[1:3] == (6, 48)
    assert document.tree["name"] == "cartpole-ppo"


def test_project_root_is_the_nearest_with_a_marker(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "plans").mkdir()
    assert project_root(tmp_path / "plans" / "p.yaml") == tmp_path


def test_a_missing_plan_names_the_nearest_file(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").touch()
    with pytest.raises(PlanError, match=r"(?s)there is no file .*did you mean 'plan.yaml'") as caught:
        load_plan(tmp_path / "paln.yaml")
    assert "\n" in str(caught.value)


def test_references_are_parsed() -> None:
    plan = load_plan(GOOD / "cartpole.yaml")[0]
    assert plan.stages["table"].inputs["scores"] == StageRef("eval", "score", ("*",))


def test_loading_is_light() -> None:
    program = (
        "import sys, dsec.plan.load, dsec.plan.check; "
        "heavy = {'numpy', 'torch', 'zarr', 'sqlalchemy', 'networkx', 'dask', 'rich'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
