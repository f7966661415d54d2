"""Causes of what differs in a long text: tried on its first tokens, with the same words as on all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked, config_of, lively

from tinytf.compare import walk
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import open_dump
from tinytf.trace.record import record

COUNT = 600


def compared(path: Path, monkeypatch: pytest.MonkeyPatch, from_token: int = 0) -> tuple[Difference, list[int]]:
    """A dump of COUNT tokens with another eps in one norm from a token on; and how long the recorded texts are."""
    model = asked(lively(config_of("llama, grouped", context=COUNT)))
    trace = model.trace(" ".join(str(number % 29 + 1) for number in range(COUNT)))
    names = [f"L{layer}.{name}" for layer in range(2) for name in ("norm1", "q", "attn", "norm2", "ffn", "out")]
    numbers = {name: trace[name].clone() for name in names}
    x, gain = trace["L0.mid"], trace["L0.norm2.gain"]
    wrong = x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt() * gain
    numbers["L0.norm2"][from_token:] = wrong[from_token:]
    np.savez(path, input_ids=np.array(trace.encoding.ids), **{name: one.numpy() for name, one in numbers.items()})
    lengths: list[int] = []

    def counted(model: Any, encoding: Any, **settings: Any) -> Any:
        lengths.append(len(encoding.tokens))
        return record(model, encoding, **settings)

    monkeypatch.setattr(walk, "record", counted)
    with torch.no_grad():
        return model.diff(None, open_dump(path)), lengths


@pytest.mark.share(6)
@pytest.mark.parametrize(("from_token", "lengths"), [(0, [256]), (300, [428, COUNT]), (500, [COUNT])])
@pytest.mark.slow
def test_causes_are_tried_on_the_first_tokens(
    from_token: int, lengths: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where these say nothing, as of a norm that is another from some token on, all tokens are tried."""
    found, recorded = compared(tmp_path / "long.npz", monkeypatch, from_token)
    assert found.first is not None
    assert (found.first.name, found.first.begins) == ("L0.norm2", from_token)
    assert recorded == lengths
    assert found.cause is not None
    assert (found.cause.step, found.cause.found) == ("L0.norm2", not from_token)
    if not from_token:
        assert found.cause.words.startswith("eps 0.5 instead of")
        assert (found.cause.tokens, found.follows) == (256, False)


def test_a_short_text_is_tried_whole(tmp_path: Path) -> None:
    model = asked(lively(config_of("llama, grouped")))
    trace = model.trace("1 2 3 4 5")
    wrong = {name: trace[name].numpy() for name in ("L0.norm1", "L0.q")}
    np.savez(tmp_path / "short.npz", input_ids=np.array(trace.encoding.ids), **{**wrong, "L0.q": -wrong["L0.q"]})
    cause = model.diff(None, open_dump(tmp_path / "short.npz")).cause
    assert cause is not None
    assert cause.tokens == 0
