"""Every screen in words: plurals, shares, numbers and the length of sentences; of texts of one token, two and many."""

from collections.abc import Callable

import pytest
from prose import LONGEST, faults, faults_of_sentence
from test_reports import REPORTS

from tinytf.loading import Model
from tinytf.report import Report
from tinytf_cli.paint.painter import paint
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.draw import blocks_of

TEXTS = ("a", "The cat", "The cat sat on the mat and the dog saw the cat. " * 2)
ASKED: dict[str, Callable[[Model, str], Report]] = {
    "trace": lambda model, text: model.traced(text),
    "attention": lambda model, text: model.attention(text),
    "a head": lambda model, text: model.attention(text, heads=((1, 0),)),
    "a layer": lambda model, text: model.attention(text, layer=1),
    "the strongest": lambda model, text: model.attention(text, heads=((1, 0),), top=1),
    "rollout": lambda model, text: model.rollout(text),
    "lens": lambda model, text: model.lens(text, top=1),
    "attribute": lambda model, text: model.attribute(text),
    "ablate": lambda model, text: model.ablate_sweep(text, "ffn"),
    "neurons": lambda model, text: model.neurons(text, top=1),
    "tokens": lambda model, text: model.tokens(text),
    "activations": lambda model, text: model.activations(text),
    "diff": lambda model, text: model.diff(text, text.replace("cat", "dog")),
    "generate": lambda model, text: model.generation(text, max_tokens=1),
    "beams": lambda model, text: model.beam_search(text, beams=2, max_tokens=1),
}


def wrong_in(report: Report) -> list[str]:
    lines = []
    for terminal in (Terminal(), Terminal(plain=True)):
        lines += paint(blocks_of(report, terminal), terminal)
    return [*faults_of_sentence(report.sentence), *(fault for line in lines for fault in faults(line))]


@pytest.mark.share(6)
@pytest.mark.parametrize("words", REPORTS, ids=lambda words: f"{words[0]}-{len(words)}")
def test_a_report_reads_as_a_person_would_say_it(opened: Model, words: tuple[str, ...]) -> None:
    assert wrong_in(REPORTS[words](opened)) == []


@pytest.mark.share(4)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("text", TEXTS, ids=len)
def test_a_text_of_any_length_is_told_as_a_person_would(opened: Model, asked: str, text: str) -> None:
    assert wrong_in(ASKED[asked](opened, text)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("of 1 tokens", "a plural of one"),
        ("1 new tokens", "a plural of one"),
        ("12 head", "a singular of many"),
        ("over 99 % and over 99 %", "two equal shares"),
        ("it is {name}", "an unfilled placeholder"),
    ],
)
def test_each_fault_is_found(text: str, fault: str) -> None:
    assert [found.partition(":")[0] for found in faults(text)] == [fault]
    assert faults_of_sentence(f"{text}.") != []


@pytest.mark.parametrize("text", ["1 token", "12 heads", "0.1 tokens", "1 of samples", "L1 heads", "77 % and 78 %"])
def test_what_is_right_is_no_fault(text: str) -> None:
    assert faults(text) == []


def test_a_sentence_ends_is_short_and_has_no_number_of_many_digits() -> None:
    assert len(faults_of_sentence("It  is 1.2345678")) == 3
    assert len(faults_of_sentence("x" * LONGEST + ".")) == 1
    assert faults_of_sentence("It is 1.2346, by 3e-07.") == []
