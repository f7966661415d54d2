"""Sessions of random lines that make sense: no line is a fault of tinytf, and no file but the named ones changes."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hostile.watchdog import acting_in

from tinytf_cli.main import EVERY
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture

LINES = 6
SLOW = {"explore", "learn", "watch", "check", "card", "certify", "doctor", "sweep", "train", "chat", "quit", "model",
        "verify"}  # fmt: skip
TEXTS = ("The cat sat", "a dog", "Once upon a time there was", '"The cat sat" --quiet', "")
ADDRESSES = ("L0H0", "L3H1.weights", "L0.ffn", "logits", "embed", "L2", "L9H9", "L1H2.weights[1,0]",
             "L0H0.scores[sat,cat]", "17", "E", "cat", "1", "-1", "%")  # fmt: skip
SIGNS = ("", "", "", "", " > out.txt", " > out.json", " > out.csv", " | head -1", " --json", " -o out.json", " /shape")
STANDING = {"notes.txt": "mine", "look.session": "run The cat\nstep\n", "theirs.json": '{"a": 1}', "out.dir/x": "x"}


def lines(rng: Random) -> Iterator[str]:
    """A text, then verbs and commands with addresses, texts and numbers, as their own examples have them, or not."""
    examples = [example for verb in VERBS.values() for example in verb.examples if verb.name not in SLOW]
    names = [name for name in (*VERBS, *EVERY) if name not in SLOW]
    yield f"run {rng.choice(TEXTS[:3])}"
    for _ in range(LINES):
        match rng.randrange(4):
            case 0:
                yield rng.choice(examples) + rng.choice(SIGNS)
            case 1:
                yield f"{rng.choice(names)} {rng.choice(ADDRESSES)}{rng.choice(SIGNS)}"
            case 2:
                yield f"{rng.choice(names)} {rng.choice((*TEXTS, *ADDRESSES))} {rng.choice(ADDRESSES)}"
            case _:
                yield rng.choice(names) + rng.choice(SIGNS)


@pytest.mark.parametrize("part", range(2))
def test_no_line_of_a_random_session_is_a_fault(
    part: int, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in STANDING.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    for number in range(part, pytestconfig.getoption("hostile") // 20, 2):
        session = Session(VERBS, Spec("tiny"), stdout=Capture(), stderr=Capture())
        for line in lines(Random(f"sessions {number}")):
            outcome = session.execute(line)
            failure = outcome.failure
            about = f"session {number}, {line!r}: {failure}"
            assert outcome.status in (0, 1, 2), about
            assert (failure is not None) == (outcome.status != 0), about
            if failure is not None:
                assert "fault of tinytf" not in failure.hint, about
                assert "\n" not in failure.message + failure.hint, about
            assert "Traceback" not in outcome.text, about
            assert not acting_in(outcome.text), about
        for name, text in STANDING.items():
            assert (tmp_path / name).read_text("utf-8") == text, f"session {number} wrote over {name}"
