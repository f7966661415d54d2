"""A configuration is a tree of parts: each setting stands once, under one flat name, and is checked where it stands."""

import ast
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from architectures import KINDS, SIZES, config_of

from tinytf import parts
from tinytf.config import DIFFERING, FIELDS, ModelConfig
from tinytf.errors import ConfigError
from tinytf.parts.attention import Attention
from tinytf.parts.block import MIXERS, BlockConfig
from tinytf.parts.embedding import Embedding
from tinytf.parts.feed_forward import FeedForward
from tinytf.parts.head import Head
from tinytf.parts.part import LACKS, Part, kinds_of, leaves, value_at
from tinytf.steps.operations import Softmax
from tinytf.steps.table import StepTable


def tree(part: Any) -> list[Any]:
    """A kind of part, and those that are in it."""
    return [part, *(below for one in dataclasses.fields(part) for kind in kinds_of(one.type) for below in tree(kind))]


def kinds_below(part: Any) -> list[Any]:
    """The kinds of a part that have no further kinds."""
    further = part.__subclasses__()
    return [kind for one in further for kind in kinds_below(one)] if further else [part]


IN_A_MODEL = [*tree(ModelConfig), *tree(BlockConfig)]


def test_every_part_is_in_a_model() -> None:
    known = {one for one in kinds_below(Part) if one.__module__.startswith(parts.__name__)}
    assert known <= set(IN_A_MODEL)


def test_every_setting_stands_once() -> None:
    own = {
        part: {one.metadata["flat"] or one.name for one in dataclasses.fields(part) if "limits" in one.metadata}
        for part in IN_A_MODEL
    }
    assert set().union(*own.values()) == FIELDS.keys() - {"n_layers", "by_layer", "mixer"}
    for one, other in itertools.combinations(own, 2):
        assert not own[one] & own[other] or {one, other} <= set(MIXERS), f"{one.__name__} and {other.__name__}"
    assert set(DIFFERING) <= set(leaves(BlockConfig))


@pytest.mark.parametrize("kind", KINDS)
def test_flat_names_read_and_make_the_tree(kind: str) -> None:
    config = config_of(kind)
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert hash(ModelConfig.from_dict(config.to_dict())) == hash(config)
    for layer, block in enumerate(config.blocks):
        here = config.at(layer)
        own = {name: value_at(block, found.path) for name, found in leaves(BlockConfig).items()}
        assert all(value is LACKS or here.setting(name) == value for name, value in own.items())
        assert all(block is other for other in config.blocks if block == other)


def test_a_tree_is_the_same_made_of_its_parts() -> None:
    block = BlockConfig(mixer=Attention(n_heads=4, d_head=6), feed_forward=FeedForward(d_ff=40))
    made = ModelConfig(d_model=24, context=32, embedding=Embedding(vocab_size=31), blocks=(block, block), head=Head())
    assert made == ModelConfig.of(**SIZES)
    assert made.but(window=4).blocks[0].mixer.window == 4


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Attention(n_heads=0, d_head=6), "n_heads 0 is below 1"),
        (lambda: Attention(n_heads=3, n_kv_heads=2, d_head=6), "n_heads 3 is not divisible by n_kv_heads 2"),
        (lambda: FeedForward(d_ff=40, activation="swish"), "activation 'swish' is not one of relu"),
        (lambda: Head(kind="sequence"), "head 'sequence' has no labels"),
        (lambda: Embedding(vocab_size=True), "vocab_size is True"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_part_refuses_what_it_cannot_be(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_part_refuses_what_does_not_go_with_the_model() -> None:
    block = BlockConfig(mixer=Attention(n_heads=4, d_head=6, positions="alibi"), feed_forward=FeedForward(d_ff=40))
    with pytest.raises(ConfigError, match="ALiBi counts back"):
        ModelConfig(
            d_model=24, context=32, causal=False, embedding=Embedding(vocab_size=31), blocks=(block,), head=Head()
        )


ROOT = Path(__file__).parents[2]
FOREIGN = {"get", "get_text_config", "architectures", "to_json_string", "patch"}
"""What is read of the configurations of other programs."""


def _reads() -> list[tuple[str, str]]:
    """What is read of anything called ``config``, and in the files of parts of ``c``: where, and which name.

    In ``through`` these are configurations of transformers.
    """
    found = []
    paths = [*(ROOT / "tinytf").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    for path in (path for path in paths if path.parent.name != "through"):
        called = ("config", "c") if path.parent.name == "parts" else ("config",)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            of = getattr(node, "value", None)
            if isinstance(node, ast.Attribute) and getattr(of, "id", getattr(of, "attr", "")) in called:
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.attr))
    return found


@pytest.mark.slow
def test_every_setting_that_is_read_exists() -> None:
    """Flat names are found when they are read, so no type checker sees one that is misspelt."""
    reads = _reads()
    known = {*FIELDS, *dir(ModelConfig), *ModelConfig.__dataclass_fields__, *FOREIGN}
    assert len(reads) > 900
    assert [(place, name) for place, name in reads if name not in known] == []


def test_weights_are_what_multiplies_values_whatever_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Softmax, "distribution", False)
    assert {StepTable(config_of(kind)).weights for kind in KINDS} == {"weights"}
