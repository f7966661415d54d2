"""Help, version and completion answer at once: they import neither torch nor numpy nor prompt_toolkit."""

import json
import os
import subprocess
import sys

import pytest
from covering import sample

from tinytf_cli.main import COMMANDS

HEAVY = ("torch", "numpy", "prompt_toolkit", "tokenizers", "safetensors", "rich")

_REPORT = """
import json, sys
from tinytf_cli.main import main
try:
    main()
except SystemExit as end:
    heavy = [name for name in {heavy!r} if name in sys.modules]
    sys.stdout.flush()
    print(json.dumps({{"status": end.code, "heavy": heavy}}), file=sys.stderr)
"""


def _start(*arguments: str, **environ: str) -> tuple[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", _REPORT.format(heavy=HEAVY), *arguments],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ, **environ},
    )  # fmt: skip
    return done.stdout, json.loads(done.stderr)


def _complete(words: str) -> tuple[str, dict[str, object]]:
    count = len(words.split()) - (0 if words.endswith(" ") else 1)
    return _start(_TINYTF_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(count))


@sample("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy_and_shows_the_usage(command: str) -> None:
    out, report = _start(*command.split(), "--help")
    assert report == {"status": 0, "heavy": []}
    assert out.startswith(f"Usage: tinytf {command}".rstrip())


def test_the_version_imports_nothing_heavy() -> None:
    out, report = _start("--version")
    assert report == {"status": 0, "heavy": []}
    assert out == "tinytf, version 0.1.0\n"


def test_no_arguments_show_the_help() -> None:
    assert _start()[0] == _start("--help")[0]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tinytf ", "plain,trace"),
        ("tinytf att", "plain,attention"),
        ("tinytf trace --js", "plain,--json"),
        ("tinytf trace --step weig", "plain,weights"),
        ("tinytf trace --at L0.W", "plain,L0.W_Q"),
        ("tinytf trace --at L1H2.we", "plain,L1H2.weights"),
        ("tinytf explain L0.norm1.g", "plain,L0.norm1.gain"),
        ("tinytf trace --model preset:g", "plain,preset:gpt2"),
        ("tinytf trace --dtype b", "plain,bfloat16"),
        ("tinytf trace --model ./some", "dir,./some"),
    ],
)
def test_completion_imports_nothing_heavy_and_offers_what_fits(typed: str, offered: str) -> None:
    out, report = _complete(typed)
    assert report["heavy"] == []
    assert offered in out.splitlines()


def test_a_usage_error_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REPORT.format(heavy=HEAVY), "trace", "a", "--jsno"], capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    *said, report = done.stderr.splitlines()
    assert json.loads(report) == {"status": 2, "heavy": []}
    assert said == ["tinytf: error: there is no option --jsno", "hint: did you mean --json?"]


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
