"""Whatever mask, slope or factor an attention has, its output says so."""

import pytest
import torch
from torch import Tensor

import tinytf
from tinytf.compare.attended import solved_attention
from tinytf.compare.masks import mask_of, seen_by
from tinytf.compare.mistakes.mistake import Wrong
from tinytf.compare.mistakes.wrong_trace import WrongTrace
from tinytf.steps.operations import Mask
from tinytf.steps.table import StepKey
from tinytf.trace.trace import Trace

TRACE = tinytf.load("tiny").trace("The cat sat on the mat and the dog ran.")
ATTENTION: StepKey = ("attn", 0)
UNSEEN: tuple[StepKey, ...] = tuple(
    (step.name, 0) for step in TRACE.steps.in_layer(0) if step.name not in ("in", "norm1", "q", "k", "v")
)
UNSEEN = UNSEEN[: UNSEEN.index(ATTENTION)]
MASK = next(place for place in UNSEEN if isinstance(TRACE.steps.at(*place).operation, Mask))
COUNT = len(TRACE.encoding.ids)


def with_mask(wrong: Wrong) -> Tensor:
    return WrongTrace(TRACE, {MASK: wrong}).step(*ATTENTION)


def solved(theirs: Tensor) -> dict[str, float]:
    """What is said, and how far from the other program's output the formula that is said comes."""
    found = {}
    for words, together in solved_attention(TRACE, ATTENTION, theirs, UNSEEN):
        gives: Trace = WrongTrace(TRACE, {place: attempt.wrong for place, attempt in together.items()})
        found[words] = float((gives.step(*ATTENTION) - theirs).abs().max() / theirs.abs().max())
    return found


@pytest.mark.parametrize("seed", range(6))
def test_any_mask_is_found_from_the_output(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    seen = torch.rand(COUNT, COUNT, generator=generator) < (0.3, 0.6, 0.9)[seed % 3]
    seen |= torch.eye(COUNT, dtype=torch.bool)
    if seed < 3:
        seen = seen.tril()
    found = solved(with_mask(mask_of(seen)))
    assert [off < 1e-4 for off in found.values()] == [True]
    assert next(iter(found)).startswith("queries see other keys: token ")


@pytest.mark.parametrize(
    ("words", "sees"),
    [
        ("a window of 3 tokens", lambda q, k: (k <= q) & (q - k < 3)),
        ("chunks of 4 tokens", lambda q, k: (k <= q) & (q // 4 == k // 4)),
        ("no token but the first sees itself", lambda q, k: (k < q) | ((q == 0) & (k == 0))),
        ("the first 5 tokens see each other, as a prefix", lambda q, k: (k <= q) | ((q < 5) & (k < 5))),
    ],
)
def test_a_mask_that_has_a_name_is_called_by_it(words: str, sees: object) -> None:
    places = torch.arange(COUNT)
    found = solved(with_mask(mask_of(sees(places[:, None], places))))  # type: ignore[operator]
    assert words in found
    assert found[words] < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_slopes_and_factors_of_heads_are_found_from_the_output(seed: int) -> None:
    numbers = 0.1 + 0.5 * torch.rand(TRACE.config.n_heads, generator=torch.Generator().manual_seed(seed))
    places = torch.arange(COUNT).float()
    distance = places - places[:, None]
    sloped = solved(with_mask(lambda site: mask_of(seen_by(site), numbers[:, None, None] * distance)(site)))
    scaled = solved(with_mask(lambda site: mask_of(seen_by(site), (numbers[:, None, None] - 1) * site.input())(site)))
    for found, begins in ((sloped, "scores fall with distance, as by ALiBi, by "), (scaled, "scores are ")):
        (words,) = found
        assert words.startswith(begins)
        assert float(words.removeprefix(begins).partition(",")[0]) == pytest.approx(float(numbers[0]), rel=2e-3)
        assert found[words] < 1e-4


def test_nothing_is_said_of_an_output_that_no_mask_gives() -> None:
    assert not solved(torch.randn(TRACE.step(*ATTENTION).shape, generator=torch.Generator().manual_seed(1)))
