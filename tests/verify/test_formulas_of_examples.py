"""The language of worked examples: every operation twice, and nothing but the language."""

import contextlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytf.verify.evaluate import cells, largest_difference
from tinytf.verify.language import Formula, LanguageError
from tinytf.verify.operations import CONSTANTS, OPERATIONS

X = np.random.default_rng(3).normal(size=(4, 6))
CALLS = {
    "exp": (X,), "log": (abs(X) + 0.1,), "sqrt": (abs(X),), "abs": (X,), "sin": (X,), "cos": (X,), "tanh": (X,),
    "erf": (X,), "sigmoid": (X,), "sum": (X, 0), "mean": (X, 1), "max": (X, 0), "min": (X, 1), "shape": (X,),
    "size": (X,), "length": ("four",), "relu": (X,), "gelu": (X,), "gelu_tanh": (X,), "silu": (X,), "scores": (X, X),
    "scale": (X, 7), "causal_mask": (X[:4, :4],), "softmax": (X, 0), "layer_norm": (X,), "rms_norm": (X, 1e-6),
    "sinusoidal": (5, 8), "split_heads": (X, 3), "join_heads": (X.reshape(2, 2, 6),), "ones": (2, 3), "tril": (X, -1),
    "triu": (X, 1), "where": (X > 0, X, 0 * X), "windows": (X[0], 3), "parameters": ("bert-base", "feed-forward"),
    "adam": (0.5, 0.1, 0.02, 0.003, 4, 1e-3, 0.9, 0.999, 1e-8), "learning_rate": (7, 0.1, 4, 20),
    "clip_factor": (3.0, 1.0), "linspace": (-3, 3, 7),
}  # fmt: skip
OF_THE_EXAMPLE = {"gradient", "learns", "token_ids", "tokens"}


def compute(text: str, **names: object) -> object:
    values = {**CONSTANTS, **names}

    class Plain:
        def __getitem__(self, name: str) -> object:
            return values[name]

        def call(self, name: str, arguments: list[object]) -> object:
            return OPERATIONS[name].by_numpy(*arguments)

        def tensor(self, parts: list[object]) -> object:
            return np.stack([np.asarray(part, dtype=np.float64) for part in parts])

        def transposed(self, value: np.ndarray) -> np.ndarray:
            return np.swapaxes(value, -1, -2)

        def spend(self, numbers: int) -> None: ...

    return Formula.parse(text, values, OPERATIONS).compute(Plain())


def as_torch(argument: object) -> object:
    return torch.tensor(argument) if isinstance(argument, np.ndarray) else argument


def test_every_operation_is_held_against_its_other_self() -> None:
    assert set(CALLS) | OF_THE_EXAMPLE >= set(OPERATIONS) - {"embedding"}


@pytest.mark.parametrize("name", CALLS)
def test_tinytf_and_numpy_agree_on_an_operation(name: str) -> None:
    arguments = CALLS[name]
    ours = cells(OPERATIONS[name].by_tinytf(*map(as_torch, arguments)))
    theirs = cells(OPERATIONS[name].by_numpy(*arguments))
    assert largest_difference(ours, theirs) < 1e-12


def test_a_softmax_of_nothing_but_minus_infinity_is_zeros_in_both() -> None:
    row = np.full((1, 3), -math.inf)
    assert cells(OPERATIONS["softmax"].by_tinytf(torch.tensor(row))).tolist() == [[0, 0, 0]]
    with np.errstate(invalid="ignore"):
        assert cells(OPERATIONS["softmax"].by_numpy(row)).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 * 3 + 4 / 8 - 1", 5.5),
        ("-2 ** 2", -4),
        ("7 // 2 + 7 % 2", 4),
        ("2 ** 0.5", math.sqrt(2)),
        ("pi * 2", math.tau),
        ("size(X)", 24),
        ("X.T[0, 1]", X[1, 0]),
        ("X[-1, 2:4][0]", X[-1, 2]),
        ("sum(X[[0, 2], 1])", X[0, 1] + X[2, 1]),
        ("(X @ X.T)[1, 3]", X[1] @ X[3]),
        ("[1, 2, 3] @ [4, 5, 6]", 32),
        ("size(X, 0) == 4", 1.0),
    ],
)
def test_a_formula_has_the_value_that_it_says(text: str, value: float) -> None:
    assert float(np.asarray(compute(text, X=X))) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("X.__class__", "there is no .__class__"),
        ("().__class__.__bases__", "there is no .__bases__"),
        ("__import__('os')", "there is no operation '__import__'"),
        ("(lambda: 1)()", "called by its name"),
        ("[x for x in X]", "not allowed in a formula"),
        ("X if X else 1", "not allowed in a formula"),
        ("exp(x=1)", "in order"),
        ("Y + 1", "no 'Y' before this step"),
        ("exp", "exp is an operation"),
        ("X[::-1]", "must go forward"),
        ("X[0.5]", "whole number"),
        ("X[9]", "X[9] cannot be computed from 4 × 6"),
        ("X @ X", "X @ X cannot be computed from 4 × 6 and 4 × 6"),
        ("softmax(X, 7)", "softmax(X, 7) cannot be computed from 4 × 6 and 7"),
        ("[X, 1]", "[X, 1] cannot be computed from 4 × 6 and 1"),
        ("1 / 0", "divides by 0"),
        ("9 ** 9 ** 9", "too large"),
        ("(((9 ** 64) ** 64) ** 64) ** 64 % 7", "too large"),
        ("-" * 1900 + "1", "nested too deeply"),
        ("None", "None is not allowed in a formula"),
        ("sum(X, None)", "None is not allowed in a formula"),
        ("'a' * 1000000", "cannot compute with words"),
        ("gradient(X + 1, X)", "takes two names"),
        ("1 < 2 < 3", "one comparison at a time"),
        ("exp(", "is not a formula"),
        ("1" * 2001, "characters"),
        ("f'{X}'", "not allowed in a formula"),
        ("b'x'", "not allowed in a formula"),
    ],
)
def test_what_is_no_formula_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(LanguageError) as refused:
        compute(text, X=X)
    assert said in f"{refused.value.message} {refused.value.hint}"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="X@+-*/()[].,:T'\"0123456789eqsumxp_ =<>λ\n#", max_size=40))
def test_any_text_is_a_value_or_a_refusal(text: str) -> None:
    with np.errstate(all="ignore"), contextlib.suppress(LanguageError):
        assert compute(text, X=X) is not None
