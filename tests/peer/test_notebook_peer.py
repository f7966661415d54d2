"""Both sides of each cell of docs/notebook.md, tinytf's and TransformerLens' in the comments, on the same weights.

TransformerLens opens what ``export`` writes of the built-in model.
"""

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from notebook import CELLS, of_lens
from torch import Tensor

Names = dict[str, Any]
Pair = tuple[Any, Any]

GIVEN = ("torch", "text", "texts", "clean", "corrupt", "length", "once", "metric")
"""What a cell of TransformerLens takes from ours: texts, ids, and a function of logits."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Names, Names]:
    """What the cells of each side leave behind."""
    ours: Names = {}
    folder = tmp_path_factory.mktemp("notebook")
    drawn = SimpleNamespace(attention_patterns=lambda tokens, attention: (tokens, attention))
    theirs: Names = {"circuitsvis": SimpleNamespace(attention=drawn)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        for number, _, code in CELLS:
            exec(code, ours)
            if number == "1":
                ours["model"].export(folder / "gpt2")
            theirs |= {name: ours[name] for name in GIVEN if name in ours}
            if number == "19":
                ours["theirs"].save_pretrained(folder / "gpt2")
                theirs["theirs"] = ours["theirs"]
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(of_lens(code), theirs)
            theirs[f"printed {number}"] = printed.getvalue()
        theirs["saved"] = torch.load("run.pt")
    return ours, theirs


def kl(before: Tensor, after: Tensor) -> Tensor:
    """The divergence of the last rows of logits (1, T, V)."""
    p, q = (logits[0, -1].double().log_softmax(-1) for logits in (before, after))
    return (p.exp() * (p - q)).sum()


def parts(ours: Tensor, theirs: Tensor) -> Pair:
    """The embeddings and what is added, whose order is by kind here, and by layer there."""
    layers = (len(ours) - 1) // 2
    by_layer = ours[1:].unflatten(0, (2, layers)).transpose(0, 1).flatten(0, 1)  # (2·L, T, C)
    return torch.cat((ours[:1], by_layer)), theirs[:, 0]


def of_texts(ours: Names, theirs: Names) -> Pair:
    """The logits of each text, those of TransformerLens without its padding."""
    own = [trace["logits"] for trace in ours["traces"]]
    return torch.cat(own), torch.cat([row[: len(one)] for one, row in zip(own, theirs["batched"], strict=True)])


def rows(probabilities: list[Any]) -> Tensor:
    return torch.tensor(probabilities)


COMPARED: dict[str, Callable[[Names, Names], Pair]] = {
    "1": lambda o, t: (o["model"].config.n_layers, t["model"].cfg.n_layers),
    "2": lambda o, t: (o["logits"], t["logits"][0]),
    "3": lambda o, t: (o["ids"], t["ids"]),
    "4": lambda o, t: (o["pattern"], t["pattern"]),
    "6": lambda o, t: (rows([one.probability for one in o["best"]]), t["best"].values),
    "7": lambda o, t: (rows(o["losses"]), t["losses"]),
    "8": lambda o, t: parts(o["parts"], t["parts"]),
    "9": lambda o, t: (rows(o["guesses"]), t["guesses"]),
    "10": lambda o, t: (o["attributed"].heads().flatten(), t["attributed"]),
    "11": lambda o, t: (o["swept"].recovered, t["swept"]),
    "12": lambda o, t: (o["ablation"].effect.kl, kl(t["logits"], t["ablation"])),
    "13": lambda o, t: (o["edited"]["logits"], t["edited"][0][0]),
    "15": lambda o, t: (o["induction"], t["induction"]),
    "16": of_texts,
    "17": lambda o, t: (o["by_pattern"], t["by_pattern"]),
    "18": lambda o, t: (o["circuit"] * o["model"].config.embed_scale ** 2, t["circuit"]),
    "19": lambda o, t: (o["ours"]["logits"], t["ours"][0]),
    "20": lambda o, t: (o["trace"]["L3.out"], t["saved"]["blocks.3.hook_resid_post"][0]),
    "21": lambda o, t: (o["streams"], t["streams"]),
    "22": lambda o, t: (
        o["table"].set_index("part").loc[t["table"]["part"], "value"].to_numpy(),
        t["table"]["value"].to_numpy().copy(),
    ),
    "23": lambda o, t: (o["at_layers"], torch.stack([t["at_layers"][layer] for layer in range(4)])),
    "24": lambda o, t: (o["swapped"]["logits"], t["swapped"][0]),
    "25": lambda o, t: (o["skipped"]["logits"], t["skipped"][0]),
    "26": lambda o, t: (o["values_alone"]["logits"], t["values_alone"][0]),
    "27": lambda o, t: (o["seen"][0][0], t["seen"][0][0].flatten(1)),
    "28": lambda o, t: (o["strongest"].values, t["strongest"].values),
    "29": lambda o, t: (rows(o["probabilities"]), rows(t["probabilities"])),
    "30": lambda o, t: (o["at_mean"].effect.kl, kl(t["logits"], t["at_mean"])),
}
"""By the number of a cell, the numbers of both sides."""
WORDS: dict[str, Callable[[Names, Names], Pair]] = {
    "3": lambda o, t: (o["strings"], [text.replace(" ", "·") for text in t["strings"]]),
    "6": lambda o, t: (f"[(' mat', {o['rank'] - 1})]", t["printed 6"].strip().rpartition(": ")[2]),
    "14": lambda o, t: (o["text"] + o["continued"], t["continued"]),
}


@pytest.mark.parametrize("number", COMPARED)
def test_both_sides_of_a_cell_give_the_same_numbers(number: str, both: tuple[Names, Names]) -> None:
    found, expected = (torch.as_tensor(side).detach().numpy() for side in COMPARED[number](*both))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("number", WORDS)
def test_both_sides_of_a_cell_give_the_same_words(number: str, both: tuple[Names, Names]) -> None:
    found, expected = WORDS[number](*both)
    assert found == expected


def test_every_cell_is_compared_but_the_picture() -> None:
    assert {number for number, _, _ in CELLS} == COMPARED.keys() | WORDS.keys() | {"5"}
