"""What a verdict says of a setting at another value, for every setting and kind of model: English, and no riddle."""

import re

import pytest
from architectures import KINDS, config_of

from tinytf.compare.settings import programs
from tinytf.config import LEAVES
from tinytf.fields import REQUIRED
from tinytf.parts.part import worded

_CONSTANTS = {"d_head", "d_model", "d_ff", "n_heads", "vocab_size", "norm_eps", "low_freq_factor", "beta_slow",
              "high_freq_factor", "beta_fast", "original_max_position_embeddings"}  # fmt: skip
"""Names that a reader knows from formulas and configuration files."""


@pytest.mark.parametrize("name", LEAVES)
def test_every_setting_has_words_for_all_its_values(name: str) -> None:
    setting = LEAVES[name]
    if name == "head" or setting.path[-1] == "called" or setting.field.default is REQUIRED:
        return  # the weights decide it
    assert setting.said
    ours = [setting.field.default] if setting.field.kind in (int, float, bool, str) else []
    values = [value for value in setting.others(*ours) if isinstance(value, int | float | str | bool)]
    pairs = [
        (value, right) for value in values for right in values if (value or setting.zero) != (right or setting.zero)
    ]
    for value, right in pairs:
        if type(value) is type(right):
            _is_english(setting.mistaken(value, right))


def _is_english(words: str) -> None:
    assert not set(re.findall(r"\w+_\w+", words)) - _CONSTANTS, words
    assert not re.search(r"none|\{|\}|  |\bTrue\b|\bFalse\b|(?<![\d.,])1 \w+s\b", words), words
    taken, instead, due = words.partition(" instead of ")
    assert due or words.endswith((" left out", " added")), words
    assert not (instead and taken.split()[-1:] == due.split()), words


@pytest.mark.parametrize("kind", [*KINDS][::25])
@pytest.mark.slow
def test_every_program_of_a_kind_of_model_is_told_in_english(kind: str) -> None:
    told = [program.words for program in programs(config_of(kind))]
    assert told
    for words in told:
        _is_english(words)


def test_numbers_that_differ_are_printed_as_different() -> None:
    assert LEAVES["norm_eps"].mistaken(1.0000001e-5, 1e-5) == "eps 1.0000001e-05 instead of 1e-05"
    assert LEAVES["experts_per_token"].mistaken(1, 2) == "1 expert a token instead of 2"
    assert LEAVES["positions"].mistaken("rotary", "none") == "RoPE added"
    assert LEAVES["d_head"].mistaken(0, 14) == "heads d_model / n_heads wide instead of 14"
    assert worded(1_000_000.0) == "1,000,000"
