"""Steering SmolLM2: vectors and steered logits are those of hooks on transformers' modules, and joy makes it happy."""

from typing import Any

import pytest
import torch

from tinytf.loading import Model

pytestmark = pytest.mark.real
LAYER, PROMPT = 12, "When I think about today, I feel"
PAIRS = [
    ("I am so happy today, everything is", "I am so miserable today, everything is"),
    ("What a wonderful, joyful morning. I feel", "What a terrible, gloomy morning. I feel"),
    ("She laughed with delight when she heard the", "She wept with grief when she heard the"),
    ("The children were cheerful and excited about", "The children were tearful and upset about"),
    ("This is the best day of my life, because", "This is the worst day of my life, because"),
    ("He smiled happily and said that", "He sobbed bitterly and said that"),
    ("We celebrated the joyful news with", "We mourned the tragic news with"),
    ("I love this beautiful song, it makes me", "I hate this depressing song, it makes me"),
    ("The party was delightful and everyone was", "The funeral was sorrowful and everyone was"),
    ("Her heart was filled with joy and", "Her heart was filled with sorrow and"),
    ("I am thrilled and delighted that you", "I am heartbroken and devastated that you"),
    ("It was a bright, merry evening and they", "It was a dark, mournful evening and they"),
    ("Grandma was glad and beaming when", "Grandma was sad and crying when"),
    ("They danced joyfully around the", "They grieved silently around the"),
    ("The happy ending made the audience", "The tragic ending made the audience"),
    ("I feel blessed and cheerful as I", "I feel hopeless and lonely as I"),
    ("Our wonderful holiday filled us with", "Our awful loss filled us with"),
    ("The puppy wagged its tail with joy at", "The puppy whimpered with pain at"),
    ("Everything is going great and I am", "Everything is falling apart and I am"),
    ("He was overjoyed to see his", "He was grief-stricken to lose his"),
]


def last_hidden(model: Model, theirs: Any, text: str) -> torch.Tensor:
    """The output of their block at the last token."""
    with torch.no_grad():
        return theirs(torch.tensor([model.encode(text).ids]), output_hidden_states=True).hidden_states[LAYER + 1][0, -1]


@pytest.mark.exhaustive
def test_the_vector_and_the_steered_logits_are_those_of_transformers(model: Model, theirs: Any) -> None:
    made = model.steer(PAIRS, at=f"L{LAYER}.out").best
    sides = [torch.stack([last_hidden(model, theirs, pair[side]) for pair in PAIRS]).double() for side in (0, 1)]
    expected = sides[0].mean(0) - sides[1].mean(0)
    assert float((made.vector - expected).abs().max()) < 1e-4 * float(expected.abs().max()) + 1e-4
    unit = expected.float() / expected.float().norm()
    changes = {"add": lambda x: x + 4 * expected.float(), "remove": lambda x: x - (x @ unit)[..., None] * unit}
    for way, change in changes.items():
        block = theirs.model.layers[LAYER]
        hook = block.register_forward_hook(
            lambda module, args, result, change=change: change(result) if isinstance(result, torch.Tensor)
            else (change(result[0]), *result[1:])
        )  # fmt: skip
        with torch.no_grad():
            logits = theirs(torch.tensor([model.encode(PROMPT).ids])).logits[0]
        hook.remove()
        vector = made.vector * (4 if way == "add" else 1)
        with model.steered(**{way: {f"L{LAYER}.out": vector}}):  # type: ignore[arg-type]
            ours = model.trace(PROMPT)["logits"]
        assert float((ours - logits).abs().max()) < 2e-3


@pytest.mark.exhaustive
def test_joy_raises_happy_over_sad_at_every_step_and_tells_new_texts_apart(model: Model) -> None:
    vector = model.steer(PAIRS, at=(f"L{LAYER}.out", "L15.out", "L25.out"))
    assert vector.best.at == "L25.out"
    assert vector.best.accuracy is not None
    assert vector.best.accuracy.low is not None
    assert vector.best.accuracy.low > 0.8
    add = vector.only(f"L{LAYER}.out")
    curve = model.steer_curve(PROMPT, add, strengths=range(-4, 5, 2), ask=["happy", "sad"])
    assert curve.direction == 1
    shares = [dose.probabilities[0] for dose in curve.doses]
    assert shares == sorted(shares)
    assert shares[-1] > 100 * shares[0]
    assert curve.check.holds
    report = model.steered_generation("When I got home, I felt", add=4 * vector.only("L15.out"), max_tokens=8)
    assert report.text().startswith(" amazing!")
    assert report.holds
