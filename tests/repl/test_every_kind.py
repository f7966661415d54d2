"""Verbs on every kind of model: each step of each is reached, and shown in every form."""

import architectures
import covering
import pytest

from tinytf.loading import Model
from tinytf.model.transformer import Transformer
from tinytf.text.train import train_characters
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture

SPEC = Spec("made")


@pytest.fixture(params=architectures.KINDS)
def session(request: pytest.FixtureRequest) -> Session:
    """A session over a small model of one kind, whose tokens are characters."""
    tokenizer = train_characters(["the cat sat on a mat"])
    size = max(architectures.config_of(request.param).vocab_size, tokenizer.vocab_size)
    config = architectures.config_of(request.param, vocab_size=size)
    begun = Session(VERBS, SPEC, stdout=Capture(), stderr=Capture())
    transformer = Transformer.initialised(config, 0)
    begun.models.add(SPEC, Model("made", transformer, tokenizer, "random weights"))
    return begun


def _target(session: Session) -> str:
    return "" if session.models.opened(SPEC).config.encoder is None else " --target-text 'a mat'"


@pytest.mark.share(6)
@pytest.mark.slow
def test_every_step_is_reached_and_shown(session: Session, request: pytest.FixtureRequest) -> None:
    """Shown in every form by the first kind whose step is computed in this way; with --exhaustive by every kind."""
    assert session.execute(f"run the cat{_target(session)}").status == 0
    rows, kind, first = session.table.rows, request.node.callspec.params["session"], architectures.first_places()
    for number, (step, layer) in enumerate(rows, start=1):
        assert session.step_words == f"{step.full_name(layer)} {number}/{len(rows)}"
        in_full = covering.everything or first[architectures.way(step)] == (kind, layer)
        for line in ("print", "print/stats", "print/shape", "print/json", "heat") if in_full else ("print/shape",):
            outcome = session.execute(line)
            tensor = step.is_tensor or line != "heat"
            assert outcome.status == 0 or not tensor, (line, session.step_words, outcome.failure)
        assert session.execute("step").status == (0 if number < len(rows) else 2)


def test_stops_maps_and_comparisons_work(session: Session) -> None:
    lines = [
        f"run the cat{_target(session)}",
        *([] if _target(session) else ["heads"]),  # which are of texts that repeat themselves, and a source never does
        "heat L0",
        "print L0",
        "break L*.weights if max > 0.01 and entropy >= 0",
        "continue",
    ]
    lines += [
        "display weights",
        "next",
        "finish",
        "delete",
        "watch nan or inf",
        "goto L0.in",
        "continue",
        f"run the mat{_target(session)}",
        "diff",
    ]
    lines += ["where", "list 100", "undo"]
    for line in lines:
        outcome = session.execute(line)
        assert outcome.status == 0, (line, outcome.failure)
