"""Sessions over the built-in model, whose streams can be read."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tinytf_cli.main import run
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
sys.path.insert(0, str(Path(__file__).parent))

from driving import Ran, Stream, Tinytf, streams
from talking import SENTENCE, Talk


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Begin a session: ``talk(model="tiny", terminal=False)``."""

    def begin(model: str | Path = "tiny", *, terminal: bool = False) -> Talk:
        out, err = Capture(terminal=terminal), Capture()
        return Talk(Session(VERBS, Spec(str(model)), stdout=out, stderr=err), out, err)

    return begin


@pytest.fixture
def ran(talk: Callable[..., Talk]) -> Talk:
    """A session that has run SENTENCE."""
    begun = talk()
    begun(f'run "{SENTENCE}"')
    return begun


@pytest.fixture
def tinytf() -> Tinytf:
    """Run the command line in this process: ``tinytf("repl", "-c", "run The cat", stdin=b"", screen=False)``."""

    def call(*arguments: str | Path, stdin: bytes = b"", screen: bool = False) -> Ran:
        out, err = Stream(screen=screen), Stream(screen=screen)
        with streams(stdout=out, stderr=err, stdin=Stream(stdin)):
            status = run([str(argument) for argument in arguments])
        return Ran(status, out.got(), err.got().decode("utf-8"))

    return call
