"""A page of explained numbers: every cell has its arithmetic, all of it is in one file, and nothing can break out."""

import asyncio
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from browser import needs_chromium, opened
from schemas import hold

import tinytf
from tinytf.errors import AddressError, UsageError
from tinytf_cli.main import run

TEXT = "The cat sat"


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


def test_every_number_is_that_of_the_trace_and_its_arithmetic_comes_to_it(model: tinytf.Model) -> None:
    page, trace = model.page(TEXT, ["L1H2.scores", "L1H2.weights", "L2.attn"]), model.trace(TEXT)
    assert [table.address for table in page.maps] == ["L1H2.scores", "L1H2.weights", "L2.attn"]
    for table in page.maps:
        for row, line in enumerate(table.numbers):
            for column, number in enumerate(line):
                recorded = float(trace[table.address][row, column])
                if number.value is None:
                    assert column > row
                    continue
                assert number.value == pytest.approx(recorded)
                total = re.search(r"^= (\S+), recorded (\S+)$", number.arithmetic, re.MULTILINE)
                assert total is not None
                assert float(total[1]) == pytest.approx(recorded, abs=1e-4)
                for left, right, result in re.findall(r": (\S+) × (\S+) = (\S+)$", number.arithmetic, re.MULTILINE):
                    assert float(left) * float(right) == pytest.approx(float(result), rel=2e-3)
    assert page.holds
    hold(page.to_dict())
    assert page.maps[0].rows == ("The", "·cat", "·sat")


def test_by_default_it_is_the_head_that_adds_most(model: tinytf.Model) -> None:
    layer, head, _ = model.traced(TEXT).overview.ranked[0]
    names = [table.address for table in model.page(TEXT).maps]
    assert names[0] == f"L{layer}H{head}.scores"
    assert names[-1] == f"L{layer}H{head}.head_out"
    masked = next(table for table in model.page(TEXT).maps if table.address.endswith("masked"))
    assert masked.numbers[0][2].value is None


def test_the_file_stands_alone_and_shows_texts_as_texts(model: tinytf.Model, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert run(["trace", "<script>alert(1)</script>", "--at", "L0H0.weights", "--html", str(file)]) == 0
    html = file.read_text("utf-8")
    assert "<script" not in html
    assert "http" not in html
    assert unescape(html).count("<script>") >= 1
    cells = re.findall(r'<td tabindex="0"[^>]*>[^<]*<span role="tooltip">[^<]*</span></td>', html)
    table = model.page("<script>alert(1)</script>", ["L0H0.weights"]).maps[0]
    assert len(cells) == len(table.rows) * len(table.columns)
    assert "@media print" in html


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "L0.weights"], "L0.weights is not one table"),
        (["--at", "L0H0.weights", "--pipeline"], "--pipeline is a part of the whole trace"),
        (["--pipeline"], "--html writes one page"),
        (["--at", "L0.W_Q"], "--html writes one page"),
    ],
)
def test_what_is_no_table_is_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", TEXT, *words, "--html", str(tmp_path / "page.html")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_too_many_numbers_are_refused_before_any_is_explained(model: tinytf.Model) -> None:
    with pytest.raises(UsageError, match="a page holds 5,000 numbers at most, and these are 9,472"):
        model.page("The cat sat on the mat. " * 5 + "The dog", [f"L{layer}.out" for layer in range(2)])
    with pytest.raises(AddressError):
        model.page(TEXT, ["L9H0.weights"])


def test_a_text_with_control_characters_writes_none(model: tinytf.Model) -> None:
    page = model.page("The \x1b[31mcat", ["L1H2.weights"])
    assert "\x1b" not in page.to_html()
    assert "of 1 step, each" in page.sentence


def test_a_page_whose_arithmetic_is_off_does_not_say_that_it_was_checked(model: tinytf.Model) -> None:
    page = model.page(TEXT, ["L1H2.weights"])
    assert "<small>checked: " in page.to_html()
    off = replace(page, check=replace(page.check, difference=2 * page.check.allowed))
    assert "<small>check failed: " in off.to_html()


@needs_chromium
def test_in_chromium_the_tab_key_shows_the_arithmetic(model: tinytf.Model, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(model.page(TEXT, ["L1H2.weights"]).to_html(), "utf-8")
    tips = "[...document.querySelectorAll('[role=tooltip]')]"
    shown = f"{tips}.filter(tip => tip.checkVisibility({{visibilityProperty: true}}))"

    async def read() -> tuple[str, str]:
        async with opened(file.as_uri(), tmp_path / "profile") as page:
            await page.evaluate("document.readyState == 'complete'")
            assert await page.evaluate(f"String({shown}.length)") == "0"
            await page.press("Tab")
            first = await page.evaluate(f"{shown}.map(tip => tip.textContent).join('|')")
            await page.press("Tab")
            return first, await page.evaluate(f"{shown}.map(tip => tip.textContent).join('|')")

    first, second = asyncio.run(read())
    numbers = model.page(TEXT, ["L1H2.weights"]).maps[0].numbers
    assert first.endswith(numbers[0][0].arithmetic)
    assert second.endswith(numbers[0][1].arithmetic)
