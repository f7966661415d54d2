"""Who gets the book: a circuit of SmolLM2 keeps most of the effect with a few of its 70,651 edges."""

import pytest

from tinytf.loading import Model
from tinytf.pairs.pair import PairSet

pytestmark = pytest.mark.real


@pytest.mark.exhaustive
def test_a_few_edges_of_smollm2_name_the_one_who_was_given_the_book(model: Model) -> None:
    text = "When {0} and {1} went to the store, {2} gave a book to"
    names = [("Mary", "John"), ("Anna", "Paul")]
    rows = [
        {"clean": text.format(a, b, b), "corrupt": text.format(a, b, a), "answer": f" {a}", "versus": f" {b}"}
        for a, b in names
    ]
    report = model.circuit(PairSet.of(rows), method="gradient", keep=0.8, left_out=3)
    assert report.holds
    assert report.separated == 2
    assert report.n_all == 70_651
    assert report.faithfulness.value >= 0.8
    assert 0 < report.n_edges < 0.1 * report.n_all
    assert report.choice.without["L23H3"] < 0.6 < report.faithfulness.value  # the head that copies the name
