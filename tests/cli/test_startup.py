"""Help, version and completion answer at once: they import neither torch nor numpy nor prompt_toolkit."""

import json
import subprocess
import sys

import pytest

from tinytf_cli.main import EVERY

HEAVY = ("torch", "numpy", "prompt_toolkit", "tokenizers", "safetensors", "rich")

_REPORT = """
import contextlib, io, json, os, sys
from tinytf_cli.main import main
for environ, arguments in json.load(sys.stdin):
    os.environ.update(environ)
    sys.argv[1:] = arguments
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    print(json.dumps([status, *said, [name for name in {heavy!r} if name in sys.modules]]))
    for name in environ:
        del os.environ[name]
"""
Started = tuple[int, str, str, list[str]]
"""The status, what was written to standard output and to standard error, and what heavy was imported so far."""


def _start(*starts: tuple[dict[str, str], list[str]]) -> list[Started]:
    """Run one command after the other in a process of their own, each with an environment and arguments."""
    done = subprocess.run(
        [sys.executable, "-c", _REPORT.format(heavy=HEAVY)], input=json.dumps(starts), capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def completed(*lines: str) -> list[tuple[list[str], list[str]]]:
    """What a shell is offered at the end of each line, and what heavy was imported so far."""
    starts = []
    for words in lines:
        count = len(words.split()) - (0 if words.endswith(" ") else 1)
        starts.append(({"_TINYTF_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(count)}, []))
    return [(out.splitlines(), heavy) for _, out, _, heavy in _start(*starts)]


def test_help_imports_nothing_heavy_and_shows_the_usage() -> None:
    helped = ["", *EVERY]
    for command, started in zip(
        helped, _start(*(({}, [*command.split(), "--help"]) for command in helped)), strict=True
    ):
        status, out, said, heavy = started
        assert (status, said, heavy) == (0, "", []), command
        assert out.startswith(f"Usage: tinytf {command}".rstrip())


def test_the_version_no_arguments_and_a_usage_error_import_nothing_heavy() -> None:
    version, nothing, helped, wrong = _start(
        ({}, ["--version"]), ({}, []), ({}, ["--help"]), ({}, ["trace", "a", "--jsno"])
    )
    assert version == [0, "tinytf, version 0.1.0\n", "", []]
    assert nothing == helped
    said = "tinytf: error: there is no option --jsno\nhint: did you mean --json?\n"
    assert wrong == [2, "", said, []]


def test_completion_imports_nothing_heavy_and_offers_what_fits() -> None:
    fits = {
        "tinytf ": "plain,trace",
        "tinytf att": "plain,attention",
        "tinytf trace --js": "plain,--json",
        "tinytf trace --step weig": "plain,weights",
        "tinytf trace --at L0.W": "plain,L0.W_Q",
        "tinytf trace --at L1H2.we": "plain,L1H2.weights",
        "tinytf explain L0.norm1.g": "plain,L0.norm1.gain",
        "tinytf trace --model preset:g": "plain,preset:gpt2",
        "tinytf trace --dtype b": "plain,bfloat16",
        "tinytf trace --model ./some": "dir,./some",
    }
    for typed, (offered, heavy) in zip(fits, completed(*fits), strict=True):
        assert heavy == [], typed
        assert fits[typed] in offered, typed


@pytest.mark.slow
def test_a_model_knows_its_questions_without_importing_them() -> None:
    rooms = (
        "tinytf.look.",
        "tinytf.cause.",
        "tinytf.compare.",
        "tinytf.generate.",
        "tinytf.gradients.",
        "tinytf.training.",
    )
    found = f"import sys, tinytf.api; print([name for name in sys.modules if name.startswith({rooms})])"
    assert subprocess.check_output([sys.executable, "-c", found], text=True) == "[]\n"


def test_runs_are_read_without_torch() -> None:
    code = """
import importlib, pkgutil, sys, tinytf.runs
for module in pkgutil.iter_modules(tinytf.runs.__path__, "tinytf.runs."):
    importlib.import_module(module.name)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
