"""Every failure is one named error on stderr, the command that continues, and the right exit status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsec import errors
from dsec.cli import failure
from dsec.cli.main import main

ARGV = ["run", "plans/a b.yaml", "-p", "seeds=[0, 1]"]


def raising(error: BaseException) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


def every_error() -> list[errors.DsecError]:
    """One of each kind."""
    kinds, found = [errors.DsecError], []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__ != errors.__name__:
            continue
        if issubclass(kind, errors.PlanError):
            problem = errors.Problem(
                "a.yaml", 3, 1, "unknown-key", "unknown key 'need'", "did you mean 'needs'?", 4, "need: x"
            )
            found.append(kind([problem]))
        else:
            found.append(kind("something is wrong", hint="do something"))
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.code)
def test_each_error_has_its_status_its_line_and_a_next_command(
    error: errors.DsecError, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failure.guarded(raising(error), ARGV) == error.exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert ("error[unknown-key]" if isinstance(error, errors.PlanError) else f"error[{error.code}]") in err
    assert "dsec run" in err.splitlines()[-1]


def test_the_command_that_continues_can_be_typed_again(capsys: pytest.CaptureFixture[str]) -> None:
    failure.guarded(raising(errors.StoreFull("no space is left")), ARGV)
    assert capsys.readouterr().err.splitlines()[-1] == "to continue: dsec run 'plans/a b.yaml' -p 'seeds=[0, 1]'"


def test_an_interrupted_run_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.guarded(raising(KeyboardInterrupt()), ARGV) == 130
    err = capsys.readouterr().err
    assert "error[interrupted]" in err
    assert "to continue: dsec run" in err


def test_a_status_of_130_is_told_as_an_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.guarded(lambda: 130, ARGV) == 130
    assert "to continue: dsec run" in capsys.readouterr().err


def test_a_failed_stage_shows_the_users_own_frames(capsys: pytest.CaptureFixture[str]) -> None:
    story = 'Traceback (most recent call last):\n  File "agents/a.py", line 3, in learn\nZeroDivisionError: division'
    error = errors.StageError("ZeroDivisionError: division by zero", instance="learn@seed=0", step=12, story=story)
    failure.guarded(raising(error), ARGV)
    err = capsys.readouterr().err
    assert "error[stage]: learn@seed=0 at step 12: ZeroDivisionError" in err
    assert 'File "agents/a.py", line 3' in err
    assert "Traceback" not in err


def test_an_unknown_exception_goes_into_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert failure.guarded(raising(RuntimeError("what\nnow")), ARGV) == failure.INTERNAL
    err = capsys.readouterr().err
    (file,) = tmp_path.iterdir()
    assert str(file) in err
    assert "internal error, please report" in err
    assert len(err.splitlines()) == 2
    assert "Traceback" in file.read_text()


def test_integrity_outweighs_a_failed_stage() -> None:
    assert failure.exit_code([errors.StageError("a"), errors.CorruptObject("b")]) == 3
    assert failure.exit_code([errors.StageError("a")]) == 1
    assert failure.exit_code([errors.StageError("a"), errors.Stalled("b")]) == 4
    assert failure.exit_code([]) == 1


@pytest.mark.parametrize(
    ("argv", "said", "see"),
    [
        (["rnu"], "no such command 'rnu'", "see: dsec --help"),
        (["run"], "missing argument", "see: dsec run --help"),
        (["run", "--nope", "x"], "no such option: --nope", "see: dsec run --help"),
        (["check", "--format", "xml", "x"], "'xml'", "see: dsec check --help"),
        (["run", "x.yaml", "--workers", "cpu"], "--workers cpu=", "see: dsec run --help"),
        (["run", "x.yaml", "-p", "lr"], "-p 'lr' is not a pair", "see: dsec run --help"),
    ],
)
def test_a_wrong_call_is_told_in_two_lines(
    argv: list[str], said: str, see: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("error[usage]: ")
    assert err.splitlines()[-1] == see


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "Usage: dsec" in capsys.readouterr().out
