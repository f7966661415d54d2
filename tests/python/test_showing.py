"""A report shows itself as its command does, in a terminal and in a notebook."""

import re
from html.parser import HTMLParser

import pytest
from answers import ANSWERS, OTHER, SAE, TEXT
from covering import sample

import tinytf
from tinytf.errors import UsageError
from tinytf_cli.main import run
from tinytf_cli.views.draw import import_views

COMMANDS = {
    "Ablation": ("ablate", TEXT, "--at", "L0H1"),
    "AblationSweep": ("ablate", TEXT, "--sweep", "heads"),
    "Activations": ("trace", "--curve", TEXT),
    "Attended": ("attention", TEXT),
    "Attribution": ("attribute", TEXT),
    "Backward": ("grad", TEXT),
    "Census": ("heads", "--count", "2", "--length", "4"),
    "Code": ("trace", "--code", TEXT),
    "Composition": ("weights", "--compose", "L0H1"),
    "Difference": ("diff", TEXT, OTHER),
    "Explained": ("explain", "L0H0.scores[1,0]", TEXT),
    "Features": ("features", TEXT, "--sae", str(SAE)),
    "HeadWeights": ("weights", "L1H2"),
    "Info": ("info",),
    "LeftOut": ("ablate", TEXT, "--without", "mask"),
    "Lens": ("lens", TEXT),
    "LessonList": ("learn", "--list"),
    "Neighbours": ("neighbours", "cat", "dog"),
    "Neurons": ("neurons", TEXT),
    "Parameters": ("trace", "--at", "L0.W_Q"),
    "PatchSweep": ("patch", TEXT, OTHER, "--answer", "the", "--versus", "cat"),
    "Patched": ("patch", TEXT, OTHER, "--answer", "the", "--versus", "cat", "--at", "L0.ffn"),
    "Positions": ("info", "--positions"),
    "Rollout": ("attention", "--rollout", TEXT),
    "Score": ("score", TEXT),
    "Similar": ("neighbours", "--texts", TEXT, OTHER, "--pooling", "mean"),
    "Tokenized": ("tokens", TEXT),
    "Traced": ("trace", TEXT),
    "Weights": ("weights",),
}


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@sample("name", COMMANDS, every=2)
def test_show_prints_what_the_command_prints(
    name: str, model: tinytf.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    ANSWERS[name](model).show()
    shown = capsys.readouterr().out
    assert run([*COMMANDS[name]]) == 0
    assert shown == capsys.readouterr().out


@pytest.mark.share(4)
@pytest.mark.parametrize("name", sorted({*ANSWERS} - {*COMMANDS}))
def test_what_differs_from_run_to_run_is_shown_too(
    name: str, model: tinytf.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times, and what lies on this machine."""
    ANSWERS[name](model).show()
    assert len(capsys.readouterr().out.splitlines()) > 2


class Page(HTMLParser):
    """The text of a page, and the elements that it is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.elements = "", list[str]()
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)


@pytest.mark.parametrize("name", ["Lens", "Score", "Difference", "Traced", "Census"])
def test_a_notebook_shows_the_same_in_colour(name: str, model: tinytf.Model) -> None:
    found = ANSWERS[name](model)
    markup = found._repr_html_()
    assert markup is not None
    page = Page(markup)
    assert set(page.elements) == {"pre", "span"}
    assert re.search(r"color: #[0-9a-f]{6}", markup)
    if name == "Score":
        assert f"{found.perplexity:.3f}" in page.text
    assert "\x1b" not in markup


def test_a_text_is_no_markup(model: tinytf.Model) -> None:
    text = "The <b>cat</b> <script>alert(1)</script>"
    markup = model.score(text)._repr_html_()
    assert markup is not None
    assert set(Page(markup).elements) == {"pre", "span"}


def test_a_trace_shows_itself_as_its_report_does(model: tinytf.Model, capsys: pytest.CaptureFixture[str]) -> None:
    trace = model.trace(TEXT)
    trace.show()
    shown = capsys.readouterr().out
    assert run(["trace", TEXT]) == 0
    assert shown == capsys.readouterr().out
    assert trace._repr_html_() == model.traced(TEXT)._repr_html_()
    assert tinytf.record(model.transformer, trace.encoding)._repr_html_() is None


def test_every_report_is_drawn(model: tinytf.Model) -> None:
    drawn = {report.__name__ for report in import_views()}
    reports = {name for name in tinytf.__all__ if isinstance(getattr(tinytf, name), type)}
    reports = {name for name in reports if issubclass(getattr(tinytf, name), tinytf.Report)} - {
        "Report",
        "TracePage",
    }  # which is a page of HTML alone
    assert {name for name in reports - drawn if not getattr(tinytf, name).ROWS} == set()
    from dataclasses import replace

    with pytest.raises(UsageError, match="has no model"):
        replace(model.score(TEXT), about=None).show()
