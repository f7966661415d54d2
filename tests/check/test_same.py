"""``same`` on modules of users: right ones are the same in every way, of a broken one the way, the step and why."""

import sys
from pathlib import Path
from typing import Any

import pytest
from covering import sample

sys.path.insert(0, str(Path(__file__).parent))

from students import RIGHT, edited, like

from tinytf.check.opened import StudentError
from tinytf.check.same import same_of_module
from tinytf.errors import UsageError
from tinytf.through.same import Same

GPT, LLAMA = "gpt.py:GPT", "llama.py:Llama"
TEXT, OTHER = "The cat sat on the mat.", "A dog ran."


def tried(target: str, folder: Path, *edits: tuple[str, str], **settings: Any) -> Same:
    return same_of_module(like(target), edited(target, folder, *edits), TEXT, **settings)


@pytest.mark.share(8)
@sample("target", RIGHT, every=3)
def test_a_right_file_is_the_same_in_every_way(target: str, tmp_path: Path) -> None:
    found = tried(target, tmp_path, other=OTHER)
    if target == "from_transformers.py:gpt2":  # which counts positions from the padding on, where none are given
        assert {way.way for way in found.ways if way.holds is False} == {way for way in WAYS if "left" in way}
        assert "with position_ids of its own it is the same" in found.in_a_sentence()
    else:
        assert found.holds, found.in_a_sentence()
    assert found.steps > (0 if "functional" in target else 5)  # functions over parameters, without a module
    assert sum(way.holds is True for way in found.ways) >= (1 if "bert" in target else 4)


WAYS = (
    "padded on the right", "padded on the left", "in a batch, padded on the right", "in a batch, padded on the left",
    "alone again, after another text", "with later tokens after it", "with a cache, token by token",
    "with a cache, in chunks of 4", "with a mask of integers", "with a mask of booleans", "with a mask of four axes",
    "with positions of its own",
)  # fmt: skip


def test_a_way_that_cannot_be_tried_says_why(tmp_path: Path) -> None:
    found = tried(GPT, tmp_path)
    assert [way.way.rpartition(" of ")[0] for way in found.ways] == [way.rpartition(" of ")[0] for way in WAYS]
    untried = {way.way: way.why for way in found.ways if way.holds is None}
    assert {untried[way] for way in untried if "cache" in way} == {"forward takes no cache"}
    assert {untried[way] for way in untried if "mask" in way or "left" in way} == {"forward takes no attention_mask"}
    assert untried["with positions of its own"] == "forward takes no position_ids"


def masked(hidden: str) -> tuple[tuple[str, str], ...]:
    """Edits by which the module takes a mask, and hides keys by adding ``hidden`` to their scores."""
    kept = "        Attention.hidden, Attention.at = attention_mask, position_ids\n        presents = []"
    adding = f"        if Attention.hidden is not None:\n            mask = {hidden}\n        weights ="
    return (
        ("tokens, past_key_values=None", "tokens, attention_mask=None, position_ids=None, past_key_values=None"),
        ("        presents = []", kept),
        ("        weights =", adding),
        ("torch.arange(past, past + T)", "torch.arange(past, past + T) if Attention.at is None else Attention.at[0]"),
    )


LEAST = "mask.masked_fill(Attention.hidden[:, None, None] == 0, torch.finfo(torch.float32).min)"


def test_a_module_that_masks_is_the_same_with_padding_on_the_left(tmp_path: Path) -> None:
    found = tried(LLAMA, tmp_path, *masked(LEAST))
    assert found.holds, found.in_a_sentence()
    tried_ways = {way.way for way in found.ways if way.holds}
    assert {"padded on the left", "in a batch, padded on the left", "with a mask of booleans",
            "with positions of its own"} <= tried_ways  # fmt: skip


def test_a_module_that_takes_booleans_alone_is_padded_with_these(tmp_path: Path) -> None:
    hidden = "mask.masked_fill(~Attention.hidden[:, None, None], torch.finfo(torch.float32).min)"
    found = tried(LLAMA, tmp_path, *masked(hidden))
    assert found.holds, found.in_a_sentence()
    why = next(way.why for way in found.ways if way.way == "with a mask of integers")
    assert why.startswith("forward refuses such a mask: ")


def test_a_mask_that_is_not_read_is_told_so(tmp_path: Path) -> None:
    found = tried(LLAMA, tmp_path, *masked("mask"))
    words = "forward takes attention_mask, and its result does not depend on it"
    assert {way.way: way.why for way in found.differing} == dict.fromkeys(
        ("padded on the left", "in a batch, padded on the left"), words
    )
    assert {way.why for way in found.ways if "with a mask" in way.way} == {words}


def test_a_row_that_sees_no_key_is_said_before_any_difference(tmp_path: Path) -> None:
    """With −∞ at every key of a row of padding its softmax is NaN, and NaN · 0 is NaN in the next layer."""
    found = tried(LLAMA, tmp_path, *masked("mask.masked_fill(Attention.hidden[:, None, None] == 0, -torch.inf)"))
    first = found.differing[0]
    assert (first.way, first.is_finite, first.difference) == ("padded on the left", False, None)
    assert first.why == "row 0 has no key to look at: softmax of only −∞"
    assert (
        found.in_a_sentence()
        .partition(": ")[0]
        .endswith("is not finite padded on the left, from layers.1.attention.wo on, at token 0 The")
    )
    assert not any("mixed" in way.why or "is read" in way.why for way in found.ways)


@pytest.mark.share(8)
@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize(
    "place", ["return x * rms * self.weight", "return self.w2(", "return self.wo(out)", "self.output(self.norm(h))"]
)
def test_a_text_that_is_not_finite_alone_is_all_that_is_said(place: str, number: str, tmp_path: Path) -> None:
    what, _, call = place.rpartition("return ")
    found = tried(LLAMA, tmp_path, (place, f"{what}{'return ' * ('return' in place)}float('{number}') * {call}"))
    assert found.ways[0].way == "alone"
    assert found.ways[0].is_finite is False
    assert {way.why for way in found.ways[1:]} == {"the text alone is not finite"}
    assert " is not finite alone, from " in found.in_a_sentence()


@pytest.mark.share(8)
@pytest.mark.parametrize(
    ("edit", "way", "step", "position", "why"),
    [
        (("torch.arange(past, past + T)", "torch.arange(T)"), "with a cache, token by token", "layers.0.attention.wo",
         1, ""),
        (("k = torch.cat((cache[0], k), dim=2)", "k = k.expand(-1, -1, past + T, -1)"),
         "with a cache, token by token", "layers.0.attention.wo", 1, ""),
        ((".triu(past + 1)", ".triu(past + T)"), "with later tokens after it", "layers.0.attention.wo", 0,
         "a token sees later ones"),
        (("h = x + attended", "h = x + attended.mean(0, keepdim=True)"), "in a batch, padded on the right",
         "layers.0.ffn_norm", 0, "the texts of a batch are mixed: another text beside it changes the numbers"),
        (("h = x + attended", "h = x + nn.functional.dropout(attended, 0.1)"), "padded on the right",
         None, None, "its numbers are drawn at random: another seed gives others"),
        (("self.scale\n", "self.scale + getattr(self, 'kept', 0)\n        self.kept = h.mean()\n"),
         "alone again, after another text", "layers.0.attention_norm", 0,
         "the model keeps something of the text before"),
    ],
    ids=["positions restart", "the key repeated", "no mask", "texts mixed", "dropout", "kept"],
)  # fmt: skip
def test_what_changes_the_numbers_is_named(
    edit: tuple[str, str], way: str, step: str | None, position: int | None, why: str, tmp_path: Path
) -> None:
    found = tried(LLAMA, tmp_path, edit)
    assert not found.holds
    differing = next(one for one in found.ways if one.way == way)
    assert differing.holds is False
    assert differing.why == why
    assert step is None or (differing.step, differing.position) == (step, position)


def test_code_that_fails_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(StudentError, match=r"llama\.py"):
        tried(LLAMA, tmp_path, ("B, T, _ = x.shape", "raise ValueError('no')"))
    with pytest.raises(UsageError, match="cannot be read"):
        same_of_module(like(GPT), str(tmp_path / "missing.py:GPT"))
