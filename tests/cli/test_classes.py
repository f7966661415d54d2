"""Models with a head of classes on the command line: what is shown of each kind, and what is refused in one line."""

import json
from pathlib import Path

import pytest
from architectures import BERT, SIZES
from driving import CORPUS, Tinytf, lively

from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.loading import Model, load
from tinytf.text.train import train_wordpiece

TEXT = "The cat sat"
LABELS = ("bad", "so so", "good")
HEADS = {
    "sequence": {"labels": LABELS, "head_dense": True, "head_activation": "tanh", "head_reads": "first"},
    "several": {"labels": LABELS, "head_dense": True, "head_activation": "tanh", "head_reads": "first"},
    "number": {"labels": ("stars",), "head_dense": True, "head_activation": "tanh", "head_reads": "first"},
    "token": {"labels": LABELS},
    "question": {"labels": ("start", "end")},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model for each kind of head."""
    folder, tokenizer = tmp_path_factory.mktemp("classes"), train_wordpiece(CORPUS, 120)
    for name, fields in HEADS.items():
        decides = name if name in ("several", "number") else "one"
        given = {**SIZES, **BERT, **fields, "vocab_size": tokenizer.vocab_size, "decides": decides, "tied_head": False}
        config = ModelConfig.of(**given, head=name if decides == "one" else "sequence", head_bias=True)
        save_run(folder / name, lively(config), tokenizer)
    return folder


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Model]:
    return {name: load(str(folder / name)) for name in HEADS}


def test_a_trace_ends_with_the_classes_and_their_probabilities(tinytf: Tinytf, folder: Path) -> None:
    ran = tinytf("trace", TEXT, "--model", folder / "sequence")
    assert ran.status == 0, ran.err
    assert all(f" {label} " in ran.out for label in LABELS)
    data = json.loads(tinytf("trace", TEXT, "--model", folder / "sequence", "--json").out)
    (found,) = data["predictions"]
    assert sum(one["probability"] for one in found["top"]) == pytest.approx(1)
    assert {one["class"] for one in found["top"]} == set(LABELS)
    assert found["at"] == "[CLS]"


def test_every_other_head_says_what_it_gives(tinytf: Tinytf, folder: Path) -> None:
    tagged = tinytf("trace", TEXT, "--model", folder / "token").out
    assert [word for word in ("the", "cat", "sat") if f"  {word}  " in tagged] == ["the", "cat", "sat"]
    asked = tinytf("trace", TEXT, "--model", folder / "question").out
    assert "  start  " in asked
    assert "  end  " in asked.replace("  end    ", "  end  ")
    assert "  number  stars  " in tinytf("trace", TEXT, "--model", folder / "number").out


def test_several_classes_have_probabilities_of_their_own_and_places_share_them_over_the_tokens(
    models: dict[str, Model],
) -> None:
    several = models["several"].trace(TEXT)
    assert float((several["probs"] - several["logits"].sigmoid()).abs().max()) < 1e-6
    places = models["question"].trace(TEXT)
    assert places["probs"].sum(dim=0).tolist() == pytest.approx([1, 1])


def test_what_needs_one_choice_is_refused_in_one_line(tinytf: Tinytf, folder: Path) -> None:
    for name, command, said in (
        ("several", "lens", "gives a probability to each class by itself"),
        ("number", "grad", "gives a number"),
        ("token", "generate", "gives classes (bad, so so, good) and predicts no token"),
    ):
        ran = tinytf(command, TEXT, "--model", folder / name)
        assert ran.status == 2
        assert said in ran.err, ran.err
        assert ran.err.count("\n") <= 2


def test_a_class_is_named_by_its_label(models: dict[str, Model]) -> None:
    model = models["sequence"]
    found = model.attribute(TEXT, token="good", versus="bad")
    assert found.holds
    assert found.to_dict()["target"] == {"id": 2, "class": "good"}
    assert model.grad(TEXT, target="so so").targets.ids == (1,)
    assert model.ablate(TEXT, "L0H1", target="good").target == 2
    with pytest.raises(UsageError, match="is none of the 3 classes"):
        model.attribute(TEXT, token="goood")
