"""Aliases, and the start-up file that may hold them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from driving import Tinytf
from talking import Talk


@pytest.mark.parametrize(
    ("alias", "typed", "meant"),
    [
        ("pw print L1H2.weights", "pw", "print L1H2.weights"),
        ("pw print L1H2.weights", "pw /stats", "print L1H2.weights /stats"),
        ("pw print L1H2.weights", "pw/stats", "print L1H2.weights/stats"),
        ('pw "print L1H2.weights"', "pw", "print L1H2.weights"),
        ("pw p L1H2.weights", "pw", "print L1H2.weights"),
        ("cat The cat's hat", "cat sat", "run The cat's hat sat"),
        ("most ! trace['logits'].max()", "most", "! trace['logits'].max()"),
        ("head3 heat L1H2 | head -3", "head3", "heat L1H2 | head -3"),
        ("tr trace", "tr --json", "trace --json"),
    ],
)
def test_an_alias_is_the_line_that_it_stands_for(ran: Talk, alias: str, typed: str, meant: str) -> None:
    ran(f"alias {alias}")
    assert ran(typed) == ran(meant)


def test_an_alias_of_an_alias_outlives_it(ran: Talk) -> None:
    ran("alias pw print L1H2.weights", "alias ps pw /stats", "unalias pw")
    assert ran("ps") == ran("print L1H2.weights /stats")
    ran.fails("pw")
    ran("undo")
    assert ran("pw") == ran("print L1H2.weights")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("alias w print", "w means where already"),
        ("alias heat top", "heat means heat already"),
        ("alias trace top", "trace means trace already"),
        ("alias 2x top", "'2x' cannot be an alias"),
        ("alias loop loop", "there is no verb or command 'loop'"),
        ("alias x nonsense", "there is no verb or command 'nonsense'"),
        ("alias x '", "the quote ' is not closed"),
        ("alias x | head", "an alias needs a line"),
        ("alias x", "there is no alias 'x'"),
        ("unalias x", "there is no alias 'x'"),
    ],
)
def test_an_alias_that_hides_a_verb_or_means_nothing_is_refused(ran: Talk, line: str, said: str) -> None:
    failure = ran.fails(line).failure
    assert failure is not None
    assert said in failure.message
    assert ran("alias") == "there are no aliases\n"


def test_aliases_that_would_go_round_do_not(ran: Talk) -> None:
    ran("alias a1 top 3", "alias b1 a1", "alias a1 b1")
    assert ran("a1") == ran("b1") == ran("top 3")


def test_a_line_is_kept_as_what_it_meant(ran: Talk, tmp_path: Path) -> None:
    ran("alias pw print L1H2.weights", "pw", "alias pw top", "pw", f"save {tmp_path / 's'}")
    assert (tmp_path / "s").read_text("utf-8").splitlines()[-4:] == [
        "alias pw print L1H2.weights", "print L1H2.weights", "alias pw top", "top",
    ]  # fmt: skip


@pytest.fixture
def startup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Write the start-up file."""
    path = tmp_path / "config" / "tinytf" / "session"
    monkeypatch.setattr("tinytf_cli.repl.startup.startup_path", lambda: path)

    def write(text: str) -> Path:
        path.parent.mkdir(parents=True)
        path.write_text(text, "utf-8")
        return path

    return write


def test_a_session_at_a_terminal_begins_with_the_start_up_file(
    tinytf: Tinytf, startup: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    startup("# mine\nset dims 3\nalias pw print L1H2.weights\n! word = 'mat'\n")
    talked = []
    monkeypatch.setattr("tinytf_cli.repl.prompt.interact", lambda session: talked.append(session) or 0)
    monkeypatch.setattr("driving.Stream.isatty", lambda self: True)
    ran = tinytf("repl")
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert talked[0].settings.dims == 3
    assert talked[0].aliases == {"pw": "print L1H2.weights"}
    assert talked[0].execute("! word").text == "'mat'\n"
    assert tinytf("repl", "--no-startup").status == 0
    assert talked[1].settings.dims is None


def test_a_script_does_without_the_start_up_file_unless_it_asks(tinytf: Tinytf, startup: Callable[[str], Path]) -> None:
    startup("set dims 3\n")
    assert tinytf("repl", "-c", "show dims").out.split()[1] == "auto"
    assert tinytf("repl", stdin=b"show dims\n").out.split()[1] == "auto"
    assert tinytf("repl", "--startup", "-c", "show dims").out.split()[1] == "3"


def test_a_line_of_the_start_up_file_that_fails_is_told_with_its_place_and_ends_nothing(
    tinytf: Tinytf, startup: Callable[[str], Path]
) -> None:
    path = startup("set dims 3\nset dims three\n! 1/0\nset precision 2\n")
    ran = tinytf("repl", "--startup", "-c", "show dims", "-c", "show precision")
    assert ran.status == 0
    assert [line.split()[1] for line in ran.lines] == ["3", "2"]
    assert f"tinytf: error: {path} line 2: dims takes" in ran.err
    assert f"tinytf: error: {path} line 3: ZeroDivisionError" in ran.err


def test_a_start_up_file_that_cannot_be_read_is_told_and_ends_nothing(
    tinytf: Tinytf, startup: Callable[[str], Path]
) -> None:
    path = startup("set dims 3\n")
    path.write_bytes(b"set dims 3\nrun \xff\nset dims 4\n")
    ran = tinytf("repl", "--startup", "-c", "show dims")
    assert (ran.status, ran.out.split()[1]) == (0, "auto")
    assert "session line 2 is not UTF-8" in ran.err
    path.unlink()
    path.mkdir()
    ran = tinytf("repl", "--startup", "-c", "show dims")
    assert (ran.status, ran.out.split()[1]) == (0, "auto")
    assert "tinytf: error: cannot read " in ran.err


def test_options_of_the_command_line_win_over_the_start_up_file(tinytf: Tinytf, startup: Callable[[str], Path]) -> None:
    startup("set width 60\nset ascii on\nmodel tiny-encoder\n")
    ran = tinytf("repl", "--startup", "-m", "tiny", "--width", "99", "The cat", "-c", "show width", "-c", "show ascii",
                 "-c", "! model.name")  # fmt: skip
    assert ran.status == 0, ran.err
    assert [ran.lines[0].split()[1], ran.lines[1].split()[1], ran.lines[2]] == ["99", "on", "'tiny'"]
    assert tinytf("repl", "--startup", "-c", "! model.name").out == "'tiny-encoder'\n"


def test_what_the_start_up_file_did_is_saved_and_runs_again(
    tinytf: Tinytf, startup: Callable[[str], Path], tmp_path: Path
) -> None:
    startup("set dims 3\nalias pw print L1H2.q\n")
    saved = tmp_path / "kept.session"
    first = tinytf("repl", "--startup", "The cat", "-c", "pw", "-c", f"save {saved}")
    assert tinytf("repl", "--allow-code", "-f", saved).out.endswith("\n".join(first.lines[:-1]) + "\n")
