"""Files that do what no homework should: a check ends with an error that says where, and never as right."""

import os
import random
import sys
from pathlib import Path

import psutil
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from students import checked, edited, like

from tinytf.check.checked import check
from tinytf.check.opened import StudentError
from tinytf.check.process import Ended, run_in_subprocess
from tinytf.memory import free_bytes
from tinytf.text.worker import Worker

GPT = "gpt.py:GPT"
FORWARD, IMPORT = "        B, T = idx.shape\n", "import math\n"


@pytest.mark.share(24)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os._exit(0)", "it exited Python"),
        ("raise SystemExit(0)", r"line \d+: it exits Python \(sys.exit\)"),
        ("raise KeyboardInterrupt", r"line \d+: KeyboardInterrupt"),
        ("import ctypes; ctypes.string_at(0)", r"line \d+: Python crashed \(SIGSEGV\)"),
        ("import os; os.kill(os.getpid(), 9)", r"Python crashed \(SIGKILL\), out of memory\?"),
        ("input()", r"line \d+: EOFError"),
        ("(lambda f: f(f))(lambda f: f(f))", r"line \d+: RecursionError"),
        ("while True: print('again')", r"line \d+: it was still running after 3 seconds"),
        ("import time; time.sleep(60)", r"line \d+: it was still running after 3 seconds"),
        ("raise type('Odd', (Exception,), {'__init__': lambda self, a, b: None})(1, 2)", r"line \d+: Odd"),
    ],
)
@pytest.mark.parametrize("place", [IMPORT, FORWARD], ids=["on import", "in forward"])
@pytest.mark.slow
def test_whatever_a_file_does_it_is_an_error_with_its_line(code: str, says: str, place: str, tmp_path: Path) -> None:
    indent = " " * (len(place) - len(place.lstrip()))
    edit = place, f"{place}{indent}{code}\n"
    with pytest.raises(StudentError, match=rf"^gpt\.py(, |: ){says}") as error:
        checked(GPT, tmp_path, edit, seconds=3 if "still running" in says else 60)
    if "line" in says:
        assert error.value.hint == f"it says: {code}"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_loop_that_catches_everything_ends_too(tmp_path: Path) -> None:
    lines = "while True:", "    try:", "        while True: pass", "    except BaseException: pass", ""
    code = "\n        ".join(("", *lines)) + "\n"
    with pytest.raises(StudentError, match=r"line \d+: it was still running"):
        checked(GPT, tmp_path, (FORWARD, FORWARD + code), seconds=3)


def test_a_thread_that_goes_on_holds_nothing_up(tmp_path: Path) -> None:
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()\n"
    assert checked(GPT, tmp_path, (IMPORT, IMPORT + thread)).holds


POPEN = "import subprocess; print(subprocess.Popen(['sleep', '600']{}).pid)\n"
DAEMON = """
import os, time
ours, theirs = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (daemon := os.fork()) == 0:
        time.sleep(600)
    os.write(theirs, str(daemon).encode())
    os._exit(0)
print(int(os.read(ours, 20)))
"""


@pytest.mark.parametrize("code", [POPEN.format(""), POPEN.format(", start_new_session=True"), DAEMON])
def test_a_process_that_it_starts_ends_with_it(code: str, tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, (IMPORT, IMPORT + code))
    assert found.holds
    assert not psutil.pid_exists(int(found.printed))


def test_interrupting_a_check_ends_all_of_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = DAEMON.replace("print(", f"open({str(note)!r}, 'w').write(str(").replace("20)))", "20))))")
    code += f"os.kill({os.getpid()}, 2)\ntime.sleep(600)\n"
    with pytest.raises(KeyboardInterrupt):  # the signal must come before the check gives up, or it ends this process
        checked(GPT, tmp_path, (IMPORT, IMPORT + code), seconds=600)
    assert not psutil.pid_exists(int(note.read_text()))


WRITE = """
import os, pickle, stat
class Forged:
    def __reduce__(self): return os.system, ("touch {marker}",)
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_IFMT(os.fstat(int(name)).st_mode) in ({kinds}): os.write(int(name), {data})
    except OSError: pass
"""


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("pickle.dumps((True, Forged()))", "it corrupted the answer of its check"),
        ("(2**40).to_bytes(8, 'big')", "its answer has 1,099,511,627,776 bytes; the limit is"),
        ("(12).to_bytes(8, 'big') + b'{\"value\": 1}'", "it corrupted the answer of its check: it sent something"),
        (
            "(900).to_bytes(8, 'big') + b'{\"value\": 1}'",
            "it corrupted the answer of its check: its answer is cut short",
        ),
        ("b''", "it exited Python"),
    ],
)
def test_an_answer_that_a_file_forges_is_an_error_and_runs_nothing(data: str, says: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    forging = WRITE.format(marker=marker, kinds="stat.S_IFREG,", data=data)
    with pytest.raises(StudentError, match=says):
        checked(GPT, tmp_path, (IMPORT, f"{IMPORT}{forging}\nos._exit(0)\n"))
    assert not marker.exists()


def test_a_file_reaches_no_other_process_that_listens_to_this_one(tmp_path: Path) -> None:
    template, marker = Worker("the template"), tmp_path / "ran"
    assert template(len, "abc") == 3
    forging = WRITE.format(marker=marker, kinds="stat.S_IFIFO, stat.S_IFSOCK", data="pickle.dumps(Forged())")
    assert checked(GPT, tmp_path, (IMPORT, IMPORT + forging)).holds
    assert template(len, "abc") == 3
    assert not marker.exists()


@pytest.mark.parametrize("grow", ["x.append(bytearray(2**24))", "x.append(torch.ones(2**22))"])
def test_a_file_that_takes_all_memory_is_stopped(grow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinytf.check.process.MEMORY", 2**28 / free_bytes(torch.device("cpu")))
    with pytest.raises(StudentError, match=r"line \d+: it needs more memory than is free") as error:
        checked(GPT, tmp_path, (FORWARD, f"{FORWARD}        x = []\n        while len(x) < 99: {grow}\n"))
    assert error.value.hint == f"it says: while len(x) < 99: {grow}"


@pytest.mark.share(4)
@pytest.mark.parametrize(
    "way", ["faulthandler.cancel_dump_traceback_later()", "signal.signal(signal.SIGABRT, signal.SIG_IGN)"]
)
@pytest.mark.slow
def test_a_loop_that_shuts_out_signals_and_watchdogs_ends_too(way: str, tmp_path: Path) -> None:
    code = f"import faulthandler, signal; {way}\nwhile True: pass\n"
    with pytest.raises(StudentError, match="it was still running after 1 seconds"):
        checked(GPT, tmp_path, (IMPORT, IMPORT + code), seconds=1)


def test_what_a_file_sets_is_neither_used_by_the_check_nor_left(tmp_path: Path) -> None:
    settings = (
        "torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False); torch.set_default_device('meta')\n"
    )
    more = "import os, sys; os.environ['HERE'] = '1'; sys.path.clear(); torch.manual_seed(5); torch.relu = None\n"
    path, state, drawn = list(sys.path), torch.get_rng_state(), random.getstate()
    assert checked(GPT, tmp_path, ("from torch import nn\n", "from torch import nn\n" + settings + more)).holds
    assert (path, drawn) == (sys.path, random.getstate())
    assert torch.equal(torch.get_rng_state(), state)
    assert "HERE" not in os.environ
    assert torch.get_default_dtype() == torch.float32
    assert torch.relu is not None


def test_what_it_prints_is_told_once_and_cannot_fill_the_memory(tmp_path: Path) -> None:
    said = checked(GPT, tmp_path, (FORWARD, FORWARD + "        print(tuple(idx.shape))\n")).printed
    assert said == f"(1, {len(like(GPT).encode('The cat sat on the mat.').tokens)})\n"
    much = "        for _ in range(300): print('x' * 1000)\n"
    assert 2**16 <= len(checked(GPT, tmp_path, (FORWARD, FORWARD + much)).printed) <= 2**16 + 1001


def test_files_beside_it_are_imported(tmp_path: Path) -> None:
    (tmp_path / "scaling.py").write_text("import math\n\ndef scaled(x, size):\n    return x / math.sqrt(4 * size)\n")
    edit = "att = att / math.sqrt(k.size(-1))", "att = scaled(att, k.size(-1))"
    found = checked(GPT, tmp_path, (IMPORT, IMPORT + "from scaling import scaled\n"), edit)
    assert found.first_wrong is not None
    assert found.first_wrong.line is not None
    assert (found.first_wrong.line.file, found.first_wrong.line.number) == ("scaling.py", 4)


def test_a_file_of_a_package_imports_its_neighbours(tmp_path: Path) -> None:
    folder = tmp_path / "homework"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "scaling.py").write_text("from math import sqrt\n")
    target = edited(GPT, folder, (IMPORT, IMPORT + "from .scaling import sqrt\n"), ("math.sqrt(k", "sqrt(k"))
    assert check(like(GPT), target).holds


def test_another_process_answers_or_ends() -> None:
    assert run_in_subprocess(lambda: torch.arange(3).sum().item()) == 3
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run_in_subprocess(lambda: 1 // 0)
    with pytest.raises(Ended, match="it exited Python"):
        run_in_subprocess(lambda: os._exit(3))
