"""``same`` on modules of users: right ones are the same in every way, of a broken one the way, the step and why."""

import sys
from pathlib import Path
from typing import Any

import pytest
from covering import sample

sys.path.insert(0, str(Path(__file__).parent))

from students import RIGHT, edited, like

from tinytf.errors import UsageError
from tinytf.student.opened import StudentError
from tinytf.student.same import same_of_module
from tinytf.through.same import Same

GPT, LLAMA = "gpt.py:GPT", "llama.py:Llama"
TEXT, OTHER = "The cat sat on the mat.", "A dog ran."


def tried(target: str, folder: Path, *edits: tuple[str, str], **settings: Any) -> Same:
    return same_of_module(like(target), edited(target, folder, *edits), TEXT, **settings)


@sample("target", RIGHT, every=3)
def test_a_right_file_is_the_same_in_every_way(target: str, tmp_path: Path) -> None:
    found = tried(target, tmp_path, other=OTHER)
    assert found.holds, found.in_a_sentence()
    assert found.steps > 5
    assert sum(way.holds is True for way in found.ways) >= 4


def test_a_way_that_cannot_be_tried_says_why(tmp_path: Path) -> None:
    found = tried(GPT, tmp_path)
    assert {way.why for way in found.ways if way.holds is None} == {"forward takes no cache"}


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
