"""What other systems lack is missed by nothing: modules, functions and signals are taken away, and commands work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = "import asyncio, multiprocessing, filelock, numpy, platformdirs, psutil, safetensors, tokenizers, torch"
"""What is loaded first: libraries that are built for the system that the test runs on."""
WINDOWS = """
import os, signal, sys
import platformdirs.unix
for name in ("fcntl", "termios", "tty", "resource", "pwd", "grp"):
    sys.modules[name] = None  # import raises ImportError
for name in ("fork", "fchmod", "geteuid", "sched_getaffinity", "killpg", "tcgetpgrp", "getpgrp"):
    delattr(os, name)
for name in ("SIGHUP", "SIGTSTP", "SIGCONT", "SIGBUS", "SIGALRM", "SIGWINCH", "SIGUSR1", "SIGPIPE", "SIGKILL"):
    delattr(signal, name)
"""
MACOS = """
import builtins, os
del os.sched_getaffinity
opened = builtins.open
def without_proc(file, *rest, **more):
    if str(file).startswith("/proc/self/"):
        raise FileNotFoundError(2, "no such file", file)
    return opened(file, *rest, **more)
builtins.open = without_proc
"""
RUN = """
import json, sys
from tinytf_cli.main import run
print(json.dumps([run(words) for words in json.loads(sys.argv[1])]), file=sys.__stderr__)
"""
COMMANDS = (
    ["trace", "The cat sat", "-o", "trace.json"],
    ["repl", "-c", "run The cat sat", "-c", "attribute --top 3"],
    ["generate", "The cat", "--max-tokens", "3"],
    ["info", "tiny"],
    ["doctor"],
)


@pytest.mark.share(4)
@pytest.mark.parametrize(("system", "taken"), [("windows", WINDOWS), ("macos", MACOS)])
@pytest.mark.slow
def test_commands_miss_nothing_that_another_system_lacks(system: str, taken: str, tmp_path: Path) -> None:
    words = json.dumps([*COMMANDS, ["check", f"{ROOT}/samples/my_gpt.py:GPT", "--like", "gpt2-tiny"]])
    line = [sys.executable, "-c", f"{LOADED}\n{taken}{RUN}", words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    *said, statuses = done.stderr.strip().splitlines()
    assert json.loads(statuses) == [0, 0, 0, 0, 0, 1], done.stderr
    assert "Traceback" not in done.stderr
    assert any("this needs a system that can fork processes" in line for line in said) == (system == "windows")
