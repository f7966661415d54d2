"""Lines from token to token: which are drawn, where they end, and how their weights are told without colour."""

import numpy as np
import pytest
import torch

from tinytf.look.links import CLASSES, class_of, links
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Links

PIPE, ASCII = Terminal(80), Terminal(80, ascii=True)


def drawn(block: Links, terminal: Terminal) -> list[str]:
    return list(paint([block], terminal))


def test_a_line_is_drawn_for_each_weight_of_a_class_and_for_the_largest_of_each_query() -> None:
    weights = torch.tensor([[1.0, -torch.inf, -torch.inf], [0.96, 0.04, -torch.inf], [0.04, 0.03, 0.02]])
    assert [link[:2] for link in links(weights, range(3))] == [(0, 0), (1, 0), (2, 0)]
    wide = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)).softmax(dim=-1) ** 2
    for query, key, weight in links(wide, range(40), strong=True):
        assert weight == wide[query, key]
        assert weight >= CLASSES[1] or weight == wide[query].max()


def test_lines_to_few_keys_are_the_strongest() -> None:
    weights = torch.eye(10) * torch.linspace(1.0, 0.1, 10)
    assert [key for _, key, _ in links(weights, range(10), most=4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(("weight", "kind"), [(1.0, 0), (0.5, 0), (0.49, 1), (0.2, 1), (0.19, 2), (0.01, 2)])
def test_the_class_of_a_weight_is_told_without_colour(weight: float, kind: int) -> None:
    assert class_of(weight) == kind
    lines = drawn(Links(["a", "b"], ["c", "d"], [(0, 0, weight)]), ASCII)
    assert set(lines[1].split()[1]) == {"#+."[kind]}
    words = ("half or more", "a fifth or more", "5 % or more")[kind]
    assert f"{'#+.'[kind] * 3} {words}" in lines[-1]


@pytest.mark.parametrize("terminal", [PIPE, ASCII])
@pytest.mark.parametrize("target", [0, 2, 4])
def test_a_line_begins_and_ends_in_the_rows_of_its_tokens(terminal: Terminal, target: int) -> None:
    names = list("abcde")
    lines = drawn(Links(names, names, [(2, target, 0.3)]), terminal)[1:10]
    rows = np.array([list(line.ljust(60)[4:31]) for line in lines])
    ink = np.array([[sign not in " abcde" for sign in row] for row in rows])
    assert np.flatnonzero(ink[:, 0]).tolist() == [4]  # the third token, two rows each
    assert np.flatnonzero(ink[:, -1]).tolist() == [2 * target]


def test_a_reader_of_sentences_hears_each_line_once() -> None:
    lines = drawn(Links(["a", "b"], ["c", "d"], [(0, 1, 0.75), (0, 0, 0.25)]), Terminal(80, plain=True))
    assert lines == ["a looks at d 75 percent, c 25 percent."]
