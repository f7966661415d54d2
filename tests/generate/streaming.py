"""What the tests of streams share: models, settings, and when two streams are the same."""

from collections.abc import Sequence

import pytest
from architectures import config_of, lively
from reference import Pair, pair

from tinytf.generate.loop import GeneratedToken, stream
from tinytf.generate.samplers import Sampling
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of

PROMPT = [3, 17, 5, 9]
WARM = Sampling(temperature=1.5, top_k=20)


def decoder(family: str) -> Pair:
    """Theirs and ours of a family that predicts the next token; with classes in its place it is skipped."""
    models = pair(family)
    if models.ours.config.head.kind != "lm":
        pytest.skip("it generates nothing")
    return models


def untied(kind: str, **changes: object) -> Transformer:
    """A model that does not say the same token again and again."""
    return exact(lively(config_of(kind, tied_head=False, **changes)))


def exact(model: Transformer) -> Transformer:
    """The model, in float64 where it has states or chooses keys: in float32 such large weights keep five digits."""
    has_states = len(table_of(model.config).attention_layers) < model.config.n_layers
    return model.double() if has_states or model.config.index_keys else model


def steps_of(model: Transformer, prompt: Sequence[int] = PROMPT, **settings: object) -> list[GeneratedToken]:
    return list(stream(model, prompt, **{"max_tokens": 10, **settings}))


def assert_same(found: Sequence[GeneratedToken], expected: Sequence[GeneratedToken]) -> None:
    """The same tokens for the same reasons, and the model thought the same of them."""
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.number, ours.id, ours.ended) == (theirs.number, theirs.id, theirs.ended)
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-5)
        assert ours.entropy == pytest.approx(theirs.entropy, abs=2e-5)
        assert ours.dropped == theirs.dropped
