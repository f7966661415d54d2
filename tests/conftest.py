"""What every test begins with: the shared helpers beside this file, a known environment, one thread."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "gradients")]  # helpers that many rooms use

# No variable of whoever runs the tests decides a colour or a width. LINES and COLUMNS are put there by readline, which
# pytest imports: into the environment that programs inherit, though not into os.environ, which was read before.
for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES", "WT_SESSION", "_TINYTF_COMPLETE",
             "TINYTF_MODEL"):  # fmt: skip
    os.environ.pop(name, None)
    os.unsetenv(name)
os.environ["TERM"] = "xterm-256color"
# Nor do the models that they have downloaded.
os.environ["HF_HUB_CACHE"] = os.environ["OLLAMA_MODELS"] = os.devnull
# Nor is what a test tokenises kept for another one.
os.environ["TINYTF_CACHE"] = ""
# Nor do the settings of whoever runs the tests.
os.environ["XDG_CONFIG_HOME"] = os.devnull
os.environ["TINYTF_PROGRESS"] = "never"  # however slow the machine is
# Workers share the cores, and so do the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell's background job begins with Ctrl-C ignored, and so would what it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import torch  # noqa: E402 (reads OMP_NUM_THREADS)

torch.set_num_threads(1)

import random  # noqa: E402

import covering  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from checks_here import checks_here  # noqa: E402, F401 (a fixture)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a library draws without asking for a generator is the same in every run, whichever tests ran before."""
    torch.default_generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _no_line_for_slow_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a command takes a second is up to the machine, and so is no part of what a test sees."""
    monkeypatch.setattr("tinytf_cli.working._SECONDS_BEFORE_THE_FIRST", 1e6)
    monkeypatch.setattr("tinytf_cli.progress._SECONDS_BEFORE_PREPARING", 1e6)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests that stay to the end are no garbage: looking for some among them took half of the time.

    And of what tests leave, garbage is looked for more seldom, as in a command: see ``tinytf_cli.main.main``.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many tries of each class tests/hostile makes, and of how many sentences real models check themselves."""
    parser.addoption("--exhaustive", action="store_true", help="what repeats too, and tests/hostile and faults in full")
    parser.addoption("--slow", action="store_true", help="what takes a second or more too, as .ci/run does")
    parser.addoption("--hostile", type=int, metavar="N", help="hostile inputs of each class: 24, exhaustively 200")
    parser.addoption(
        "--faults", type=int, metavar="N", help="faults in each of tests/faults: 2, exhaustively 6; 0 for all"
    )
    parser.addoption("--sentences", type=int, default=1, metavar="N", help="sentences for real models, at most 200")


def pytest_configure(config: pytest.Config) -> None:
    """The numbers that were not given."""
    covering.everything = config.option.exhaustive
    for name, some, many in (("hostile", 24, 200), ("faults", 2, 6)):
        if getattr(config.option, name) is None:
            setattr(config.option, name, many if config.option.exhaustive else some)


_turns: dict[str, int] = {}


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None, object, object]:
    """Leaves out what only repeats, unless it is asked for: thousands of tests that are never made."""
    if not metafunc.config.option.exhaustive:
        covering.thin_out(metafunc, _turns)
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is ``slow``, unless it is asked for or its file is named, and of only ``exhaustive`` cases."""
    named = any(".py" in argument for argument in config.args)
    marks = {"exhaustive"} if named or config.option.slow else {"exhaustive", "slow"}
    marks = set() if config.option.exhaustive else marks
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in marks)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in {*left_out}]
