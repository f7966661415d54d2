"""A session without a terminal: transcripts that give what they gave, options, files and pipes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from driving import Tinytf
from golden import SESSIONS, given

from tinytf.loading import Model

HEAT = "L0H0.weights   attention weights"


@pytest.mark.parametrize("path", SESSIONS, ids=[path.stem for path in SESSIONS])
def test_a_transcript_gives_what_stands_beside_it(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert given(path) == path.with_suffix(".expected").read_text("utf-8")


@pytest.mark.parametrize("path", SESSIONS, ids=[path.stem for path in SESSIONS])
def test_a_transcript_holds_where_numbers_round_otherwise(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No number of it stands so near the edge between two roundings that another machine may give the other one."""
    from tinytf_cli.repl import models

    right, drawn = models.load, torch.Generator().manual_seed(6)

    def load(name: str, **settings: Any) -> Model:
        model = right(name, **settings)
        with torch.no_grad():
            for parameter in model.transformer.parameters():
                parameter.mul_(1 + 3e-6 * torch.randn(parameter.shape, generator=drawn))
        return model

    monkeypatch.setattr(models, "load", load)
    monkeypatch.chdir(tmp_path)
    assert given(path) == path.with_suffix(".expected").read_text("utf-8")


def test_options_a_file_and_a_pipe_give_the_same(tinytf: Tinytf, tmp_path: Path) -> None:
    lines = ["set precision 2", 'run "The cat sat"', "heat L0H0"]
    script = tmp_path / "look.session"
    script.write_text("\n".join(lines) + "\n", "utf-8")
    by_options = tinytf("repl", *(word for line in lines for word in ("-c", line)))
    assert HEAT in by_options.out
    assert (by_options.status, by_options.err) == (0, "")
    assert tinytf("repl", "-f", script) == by_options
    assert tinytf("repl", stdin=script.read_bytes()) == by_options
    assert tinytf("repl", "-f", "-", stdin=script.read_bytes()) == by_options
    assert tinytf("repl", stdin=script.read_bytes().replace(b"\n", b"\r\n")) == by_options


def test_nothing_is_shown_but_what_lines_give_and_echo_shows_the_lines(tinytf: Tinytf) -> None:
    assert tinytf("repl", "The cat", "-c", "set dims 3").lines == tinytf("repl", "-c", "set dims 3").lines
    assert len(tinytf("repl", "-c", "set dims 3").lines) == 1
    assert tinytf("repl", "-c", "set dims 3", "--echo").lines[0] == "tinytf> set dims 3"
    assert tinytf("repl", "-c", "").out == tinytf("repl", stdin=b"").out == ""


def test_the_text_of_the_command_line_is_the_text_of_the_session(tinytf: Tinytf) -> None:
    assert "The│·cat" in tinytf("repl", "The", "cat", "-c", "tokens").out
    assert tinytf("repl", 'say "it\'s" \\ #1', "-c", "! trace.encoding.text").out == "'say \"it\\'s\" \\\\ #1'\n"


def test_a_line_that_fails_ends_the_script_or_not_and_is_named(tinytf: Tinytf, tmp_path: Path) -> None:
    script = tmp_path / "s.session"
    script.write_text("step\nset dims 3\n", "utf-8")
    stopped = tinytf("repl", "-f", script)
    assert (stopped.status, stopped.out) == (1, "")
    assert stopped.err.startswith("tinytf: error: s.session line 1: nothing has been run yet\nhint: ")
    went_on = tinytf("repl", "-f", script, "--on-error", "continue")
    assert went_on.status == 1
    assert went_on.out.startswith("  dims  3")
    assert "error: -c 1: " in tinytf("repl", "-c", "step").err
    assert "error: line 2: " in tinytf("repl", stdin=b"set dims 3\nstep\n").err


def test_files_come_before_options(tinytf: Tinytf, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("set dims 3", "utf-8")
    (tmp_path / "b").write_text("set dims 4", "utf-8")
    ran = tinytf("repl", "-c", "show dims", "-f", tmp_path / "a", "-f", tmp_path / "b")
    assert [line.split()[1] for line in ran.lines] == ["3", "4", "4"]


def test_leaving_ends_a_script_also_from_a_file_inside_it(tinytf: Tinytf, tmp_path: Path) -> None:
    assert tinytf("repl", "-c", "quit", "-c", "nonsense").status == 0
    (tmp_path / "a").write_text("quit\n", "utf-8")
    assert tinytf("repl", "-c", f"source '{tmp_path / 'a'}'", "-c", "nonsense").status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-f", "nowhere"), "cannot read nowhere"),
        (("-m", "nothing", "-c", "show"), "there is no model 'nothing'"),
        (("--on-error", "weep"), "--on-error"),
        (("--width", "3"), "--width"),
        (("   ", "-c", "show"), "the text is only white space"),
    ],
)
def test_wrong_usage_of_the_command_is_status_2(tinytf: Tinytf, arguments: tuple[str, ...], said: str) -> None:
    ran = tinytf("repl", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.startswith("tinytf: error: ")


def test_bytes_that_are_no_text_are_named_with_their_line(tinytf: Tinytf) -> None:
    ran = tinytf("repl", stdin=b"set dims 3\nrun \xff\n")
    assert ran.status == 1
    assert ran.err == (
        "tinytf: error: line 2 is not UTF-8: byte 0xff\nhint: re-encode it, for example with iconv -t utf-8\n"
    )


def test_a_saved_session_runs_again_and_gives_the_same(tinytf: Tinytf, tmp_path: Path) -> None:
    saved = tmp_path / "kept.session"
    lines = ["set precision 2", 'run "The cat sat"', "step 8", "", "nonsense", "undo", "run A dog", "heads L1", "diff",
             f"save '{saved}'"]  # fmt: skip
    first = tinytf("repl", *(word for line in lines for word in ("-c", line)), "--on-error", "continue")
    again = tinytf("repl", "-f", saved)
    assert again.status == 0
    assert again.lines == first.lines[:-1]
    assert "nonsense" not in saved.read_text("utf-8")


def test_what_save_writes_always_runs_again(tinytf: Tinytf, tmp_path: Path) -> None:
    saved = tmp_path / "kept.session"
    lines = ["run The cat's hat", "! 1/0", "!!", "print L1H2.weights", f"save '{saved}'"]
    assert tinytf("repl", *(word for line in lines for word in ("-c", line)), "--on-error", "continue").status == 1
    assert saved.read_text("utf-8").splitlines()[1:] == ["run The cat's hat", "print L1H2.weights"]
    assert tinytf("repl", "-f", saved).status == 0


def test_a_saved_session_begins_with_its_model_and_text(tinytf: Tinytf, tmp_path: Path) -> None:
    saved = tmp_path / "kept.session"
    first = tinytf("repl", "-m", "tiny-encoder", "The", "[MASK] sat", "-c", "print/shape logits", "-c", f"save {saved}")
    assert first.status == 0, first.err
    assert saved.read_text("utf-8").splitlines()[1:] == [
        'model "tiny-encoder" --quiet',
        'run --quiet -- "The [MASK] sat"',
        "print/shape logits",
    ]
    assert tinytf("repl", "-f", saved).lines == first.lines[:-1]


def test_a_file_that_sources_itself_is_stopped(tinytf: Tinytf, tmp_path: Path) -> None:
    script = tmp_path / "again"
    script.write_text(f"source {script}\n", "utf-8")
    ran = tinytf("repl", "-f", script)
    assert ran.status == 1
    assert "check that no file sources itself" in ran.err


def test_an_error_in_a_sourced_file_names_both_lines_and_keeps_what_was_done(tinytf: Tinytf, tmp_path: Path) -> None:
    (tmp_path / "inner").write_text("set dims 3\nstep\n", "utf-8")
    ran = tinytf("repl", "-c", f"source {tmp_path / 'inner'}", "-c", "show dims", "--on-error", "continue")
    assert "error: -c 1: inner line 2: nothing has been run yet" in ran.err
    assert ran.lines[-1].split()[:2] == ["dims", "3"]


def test_without_arguments_there_is_help_in_a_pipe(tinytf: Tinytf) -> None:
    assert tinytf().out.startswith("Usage: tinytf ")


def test_at_a_terminal_there_is_a_prompt(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    talked = []
    monkeypatch.setattr("tinytf_cli.repl.prompt.interact", lambda session: talked.append(session.run) or 0)
    monkeypatch.setattr("driving.Stream.isatty", lambda self: True)
    assert tinytf().status == 0
    assert tinytf("repl", "The cat").status == 0
    assert [run and run.text for run in talked] == [None, "The cat"]


def test_a_file_that_deletes_stops_by_number_is_not_run_beside_other_stops(tinytf: Tinytf, tmp_path: Path) -> None:
    script = tmp_path / "stops.session"
    script.write_text("break L0.q\nbreak L1.q\ndelete 1\nbreak\n", "utf-8")
    alone = tinytf("repl", "-c", "break L2", "-c", "delete", "-c", f"source '{script}'")
    assert alone.lines[-1].split() == ["2", "L1.q"]
    beside = tinytf("repl", "-c", "break L2", "-c", f"source '{script}'", "-c", "break", "--on-error", "continue")
    assert "stops.session line 3 names a stop by number" in beside.err
    assert beside.lines[-1].split() == ["1", "L2"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("! open('owned', 'w')", "run Python"),
        ("alias x ! open('owned', 'w')\nx", "run Python"),
        (">>> open('owned', 'w')", "run Python"),
        ("! if True:\n    open('owned', 'w')", "run Python"),
        ("show | tee owned", "run a program"),
        ("show\n| tee owned", "run a program"),
        ("check owner.py:X --like tiny", "run a module"),
        ("source inner --allow-code", "run Python"),
        ("sweep r.toml kept.txt", "start the processes"),
    ],
)
def test_a_file_runs_no_code_and_writes_over_nothing_unless_it_may(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kept", "kept.txt"):
        Path(name).write_text("kept", "utf-8")
    Path("owner.py").write_text("open('owned', 'w')", "utf-8")
    Path("inner").write_text("! open('owned', 'w')\n", "utf-8")
    Path("strange").write_text(f"{line}\n", "utf-8")
    for arguments in (["-f", "strange"], ["-c", "source strange"]):
        ran = tinytf("repl", *arguments)
        assert ran.status == 1
        assert f"a file may {said}" in ran.err
        assert not Path("owned").exists()
        assert Path("kept").read_text("utf-8") == Path("kept.txt").read_text("utf-8") == "kept"


def test_a_file_that_may_runs_code_and_what_is_typed_always_does(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own").write_text("! 6 * 7\n", "utf-8")
    assert tinytf("repl", "--allow-code", "-f", "own").out == "42\n"
    assert tinytf("repl", "-c", "source own --allow-code", "-c", "! 6 * 8").out == "42\n48\n"
    assert tinytf("repl", "-f", "own", "-c", "! 6 * 8", "--on-error", "continue").out == "48\n"
