"""stdout is data and nothing else; errors are one line and perhaps a hint; the exit status says which kind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driving import SENTENCE, Program, Ran, Tinytf

import tinytf_cli.commands.trace as trace_command

_ERROR = re.compile(r"tinytf: error: [^\n]+\n(hint: [^\n]+\n)?")


def is_a_clean_error(ran: Ran, status: int) -> bool:
    """Nothing on stdout, one error line and at most one hint on stderr."""
    assert ran.data == b""
    assert "Traceback" not in ran.err
    assert _ERROR.fullmatch(ran.err), ran.err
    assert ran.status == status
    return True


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
    import torch

    monkeypatch.setitem(__import__("tinytf.trace.check", fromlist=["TOLERANCE"]).TOLERANCE, torch.float32, 0.0)
    for command in ("trace", "attention"):
        ran = tinytf(command, SENTENCE, "-m", decoder)
        assert ran.status == 1
        assert "check failed: largest difference" in " ".join(ran.lines[-2:])


def test_an_error_without_a_known_kind_is_still_one_line(
    tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] not enough memory")

    monkeypatch.setattr("tinytf.loading.record", fail)
    assert is_a_clean_error(tinytf("trace", SENTENCE, "-m", decoder), 1)


def test_a_keyboard_interrupt_is_130_in_one_line(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_command.command, "callback", interrupt)
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

    monkeypatch.setattr("tinytf.loading.record", swallow)
    ran = tinytf("trace", SENTENCE, "-m", decoder)
    assert ran.status == 130
    assert ran.err.strip() == "tinytf: interrupted"


def test_control_c_while_it_works_is_130_without_a_traceback(decoder: Path) -> None:
    script = (
        "import tinytf.loading, time, sys\n"
        "from tinytf_cli.main import main\n"
        "def wait(*a, **k):\n"
        "    print('working', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "tinytf.loading.record = wait\n"
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


@pytest.mark.skipif(sys.platform == "win32", reason="pipes end otherwise there")
@pytest.mark.parametrize("options", [["trace", "--full"], ["trace", "--json", "--full"], ["tokens"]])
def test_a_reader_that_has_had_enough_hears_no_complaint(decoder: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "tinytf_cli", options[0], " ".join([SENTENCE] * 6), "-m", str(decoder)]
    with subprocess.Popen([*command, *options[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        if options != ["tokens"]:
            process.stdout.read(1)
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        status = process.wait(timeout=30)
    assert (status, err) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_in_one_line(decoder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tinytf_cli", "tokens", "The cat", "-m", str(decoder)],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert _ERROR.fullmatch(done.stderr.decode()), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams as a Unix shell does")
@pytest.mark.parametrize(("closed", "status"), [("<&-", 2), (">&-", 1)])
def test_a_stream_that_is_closed_is_no_traceback(decoder: Path, closed: str, status: int) -> None:
    command = f"exec {sys.executable} -m tinytf_cli tokens {'' if closed == '<&-' else 'cat'} -m {decoder} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.returncode == status
    assert _ERROR.fullmatch(done.stderr.decode()), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="closes streams as a Unix shell does")
def test_an_error_never_goes_to_stdout_even_where_stderr_is_closed(decoder: Path) -> None:
    command = f"exec {sys.executable} -m tinytf_cli tokens '' -m {decoder} 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_stream_that_takes_7_bits_gets_7_bits(program: Program, decoder: Path) -> None:
    done = program("trace", "The café ☃ 😀", "-m", decoder, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


def test_the_module_and_the_console_script_are_one(program: Program, decoder: Path, tinytf: Tinytf) -> None:
    done = program("tokens", SENTENCE, "-m", decoder, env={"PYTHONIOENCODING": "utf-8", "COLUMNS": "100"})
    assert done.stdout.replace(os.linesep.encode(), b"\n") == tinytf("tokens", SENTENCE, "-m", decoder).data
