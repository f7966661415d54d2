"""stdout is data and nothing else; errors are one line and perhaps a hint; the exit status says which kind."""

import os
import runpy
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from driving import SENTENCE, Ran, Stream, Tinytf, is_a_clean_error, streams

from tinytf import tolerance
from tinytf_cli.commands.trace import trace as trace_command
from tinytf_cli.main import run


@pytest.mark.parametrize("command", ["trace", "attention", "tokens"])
def test_data_goes_to_stdout_and_nothing_to_stderr(tinytf: Tinytf, decoder: Path, command: str) -> None:
    ran = tinytf(command, SENTENCE, "--model", decoder)
    assert (ran.status, ran.err) == (0, "")
    assert ran.data


def test_a_note_about_a_written_file_goes_to_stderr(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    ran = tinytf("tokens", "a", "-m", decoder, "-o", path)
    assert (ran.status, ran.data) == (0, b"")
    assert ran.err == f"tinytf: wrote {path} ({path.stat().st_size:,} bytes)\n"


def test_debug_shows_the_traceback(tinytf: Tinytf, decoder: Path) -> None:
    from tinytf.errors import UsageError

    with pytest.raises(UsageError, match="the text is empty"):
        tinytf("trace", "", "-m", decoder, "--debug")


def test_the_word_debug_in_a_text_is_no_option(tinytf: Tinytf, decoder: Path) -> None:
    assert is_a_clean_error(tinytf("trace", "--at", "nonsense", "-m", decoder, "--", "--debug"), 2)


def test_a_wrong_request_is_2_and_a_damaged_model_1(tinytf: Tinytf, tmp_path: Path) -> None:
    assert is_a_clean_error(tinytf("trace", "a", "--layer", "x"), 2)
    assert is_a_clean_error(tinytf("trace", "a", "-m", tmp_path), 1)


def test_a_check_that_does_not_hold_is_1_with_the_data_on_stdout(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tolerance, "MARGIN", 1e-3)
    for command in ("trace", "attention"):
        ran = tinytf(command, SENTENCE, "-m", decoder)
        assert ran.status == 1
        assert "check failed: first at" in " ".join(ran.lines[-4:])


def test_an_error_without_a_known_kind_is_still_one_line(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] not enough memory")

    monkeypatch.setattr("tinytf.text_model.record", fail)
    assert is_a_clean_error(tinytf("trace", SENTENCE, "-m", decoder), 1)


def test_a_keyboard_interrupt_is_130_in_one_line(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_command, "callback", interrupt)
    ran = tinytf("trace", "a")
    assert (ran.status, ran.data) == (130, b"")
    assert ran.err.strip() == "tinytf: interrupted"


def test_an_interrupt_that_a_library_swallowed_still_ends_in_130(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch survives an interrupt while it imports numpy, and is left with half of it."""

    def swallow(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("module 'numpy' has no attribute 'iinfo'") from None

    monkeypatch.setattr("tinytf.text_model.record", swallow)
    ran = tinytf("trace", SENTENCE, "-m", decoder)
    assert ran.status == 130
    assert ran.err.strip() == "tinytf: interrupted"


@pytest.mark.slow
def test_control_c_while_it_works_is_130_without_a_traceback(decoder: Path) -> None:
    script = (
        "import tinytf.loading, time, sys\n"
        "from tinytf_cli.main import main\n"
        "def wait(*a, **k):\n"
        "    print('working', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "tinytf.text_model.record = wait\n"
        "main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, "trace", "The cat", "-m", str(decoder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == b"working\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == b""
    assert err.strip() == b"tinytf: interrupted"


def test_a_reader_that_has_had_enough_hears_no_complaint(decoder: Path) -> None:
    """As in ``tinytf trace … | head -1``: a pipe whose other end is closed while the trace is being written."""
    for options in (["trace", "--full"], ["trace", "--json"], ["trace", "--format", "ndjson"], ["tokens"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        err = Stream()
        with open(write_end, "w", encoding="utf-8") as pipe, streams(stdout=pipe, stderr=err):
            status = run([options[0], SENTENCE, "-m", str(decoder), *options[1:]])
            pipe.flush()  # as Python does at exit
        assert (status, err.got()) == (0, b""), options


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_in_one_line(decoder: Path) -> None:
    err = Stream()
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115, closing it fails, as it should
    with streams(stdout=full, stderr=err):
        status = run(["tokens", "The cat", "-m", str(decoder)])
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert is_a_clean_error(Ran(status, b"", err.got().decode()), 1)


def test_without_a_stdin_there_is_no_text(decoder: Path) -> None:
    out, err = Stream(), Stream()
    with streams(stdin=None, stdout=out, stderr=err):  # what Python makes of <&-
        status = run(["tokens", "-m", str(decoder)])
    assert is_a_clean_error(Ran(status, out.got(), err.got().decode()), 2)


@pytest.mark.parametrize("arguments", [["tokens", "cat"], ["--help"]])
def test_without_a_stdout_an_error_says_so(decoder: Path, arguments: list[str]) -> None:
    err = Stream()
    with streams(stdout=None, stderr=err):  # what Python makes of >&-
        status = run([*arguments, "-m", str(decoder)] if arguments == ["tokens", "cat"] else arguments)
    assert is_a_clean_error(Ran(status, b"", err.got().decode()), 1)


def test_an_error_never_goes_to_stdout_even_where_stderr_is_closed(decoder: Path, tmp_path: Path) -> None:
    for arguments in (["tokens", ""], ["tokens", "a", "-o", str(tmp_path / "a.txt")]):
        out = Stream()
        with streams(stdout=out, stderr=None):
            run([*arguments, "-m", str(decoder)])
        assert out.got() == b""


@pytest.mark.parametrize("command", ["trace", "attention", "tokens"])
@pytest.mark.parametrize("form", ["text", "json", "ndjson"])
def test_a_stream_that_takes_7_bits_gets_7_bits(tinytf: Tinytf, decoder: Path, command: str, form: str) -> None:
    ran = tinytf(command, "The café ☃ 😀", "-m", decoder, "--format", form, encoding="ascii")
    assert (ran.status, ran.err) == (0, "")
    assert ran.data.isascii()


def test_the_module_and_the_console_script_are_one(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    (script,) = entry_points(group="console_scripts", name="tinytf")
    assert script.value == "tinytf_cli.__main__:main"
    out = Stream()
    monkeypatch.setattr(sys, "argv", ["tinytf_cli", "--version"])
    with streams(stdout=out), pytest.raises(SystemExit) as end:
        runpy.run_module("tinytf_cli", run_name="__main__")
    assert (end.value.code, out.got()) == (0, tinytf("--version").data)


def test_help_for_a_reader_that_has_gone_is_quiet() -> None:
    for arguments in (["--help"], ["trace", "--help"], ["--version"]):
        reader, writer = os.pipe()
        os.close(reader)
        ran = subprocess.run([sys.executable, "-m", "tinytf", *arguments], stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert (ran.returncode, ran.stderr) == (0, b"")


def test_control_c_before_anything_is_imported_is_130_in_a_line() -> None:
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever started this
        "from tinytf_cli.__main__ import main\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tinytf_cli.main':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (130, "tinytf: interrupted\n")
