"""Pictures keep the grid of the terminal in every program that draws them, and say in words what they show."""

import re
import shlex
import sys
import xml.etree.ElementTree as ElementTree
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from covering import sample
from driving import WIDE, Tinytf, is_a_clean_error
from rich.cells import cell_len

from tinytf_cli.picture import picture, printed
from tinytf_cli.terminal import Terminal

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "samples"))
from gallery import LINES  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
CELL = 12.2
"""Pixels of a column in rich's SVG."""
WITHOUT_FOLDER = [line for line in LINES if "FOLDER" not in line and "--watch" not in line]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def words_of(path: Path) -> str:
    """The text of a picture, a line for each of its elements."""
    return "\n".join(text.text or "" for text in ElementTree.parse(path).iter(f"{SVG}text")).replace("\xa0", " ")


@pytest.mark.share(4)
@sample("line", WITHOUT_FOLDER, every=8)
@pytest.mark.slow
def test_every_picture_keeps_its_grid_and_says_what_it_shows(tinytf: Tinytf, tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.svg"
    assert tinytf(*shlex.split(line), "--width", "80", "-o", path).status <= 1
    root = ElementTree.parse(path).getroot()
    title, alternative = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert alternative is not None
    assert re.fullmatch("tinytf [a-z ]+", title.text or "")
    assert len((alternative.text or "").split()) >= 2
    if line.startswith("circuit"):
        return  # a graph, which has no grid
    for text in root.iter(f"{SVG}text"):
        column = float(text.attrib["x"]) / CELL
        assert column == pytest.approx(round(column), abs=1e-3)
        if (words := text.text or "").strip("\n\xa0 "):
            assert not re.search(r"[\xa0 ]{2}", words), "columns drift after a gap in programs that ignore textLength"
            assert float(text.attrib["textLength"]) == pytest.approx(CELL * cell_len(words), abs=1e-3)


@pytest.mark.parametrize("path", sorted((ROOT / "samples" / "pictures").glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_of_the_pages_has_a_title_a_description_and_nothing_of_the_network(path: Path) -> None:
    title, description, *_ = ElementTree.parse(path).getroot()
    assert (title.tag, description.tag) == (f"{SVG}title", f"{SVG}desc")
    assert len((description.text or "").split()) >= 2
    assert "url(" not in path.read_text("utf-8").replace("url(#", "")


@sample("line", WITHOUT_FOLDER, every=8)
@pytest.mark.slow
def test_a_figure_has_no_lines_about_the_model_no_checks_that_hold_and_no_advice(
    tinytf: Tinytf, tmp_path: Path, line: str
) -> None:
    if line.startswith("circuit"):
        pytest.skip("a graph has none of them")
    figure = tmp_path / "figure.svg"
    assert tinytf(*shlex.split(line), "--width", "200", "-o", figure, "--figure").status <= 1
    shown = words_of(figure)
    assert shown
    assert not re.search(r"^checked|byte-level BPE|; --all", shown, re.MULTILINE)


@pytest.mark.parametrize("text", WIDE.values(), ids=WIDE)
def test_wide_letters_and_accents_keep_the_grid(text: str) -> None:
    root = ElementTree.fromstring(picture([text], ".svg", Terminal(width=80, depth="truecolor")))
    drawn = [one for one in root.iter(f"{SVG}text") if (one.text or "").strip("\n")]
    column = 0
    for one in drawn:
        assert float(one.attrib["x"]) == pytest.approx(CELL * column, abs=1e-3)
        assert float(one.attrib["textLength"]) == pytest.approx(CELL * cell_len(one.text or ""), abs=1e-3)
        column += cell_len(one.text or "")
    assert "".join(one.text or "" for one in drawn).replace("\xa0", " ") == text
    assert column == cell_len(text)


def test_braille_is_drawn_as_dots_in_its_cells() -> None:
    """DejaVu Sans Mono, the first of the fonts, has no such signs: a program without another draws boxes."""
    signs = "⠁⣿ ⢀"
    root = ElementTree.fromstring(picture([f"a  {signs}b"], ".svg", Terminal(width=80, depth="truecolor")))
    corners = [
        (float(x) + 1.2, float(y) + 1.2)
        for one in root.iter(f"{SVG}path")
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)H", one.attrib["d"])
    ]
    assert [int(x / CELL) for x, _ in sorted(corners)] == [3, *[4] * 8, 6]
    assert len({round(y) for _, y in corners}) == 4
    letters = {(one.text or "").strip("\n\xa0"): float(one.attrib["x"]) / CELL for one in root.iter(f"{SVG}text")}
    assert letters.pop("a") == pytest.approx(0)
    assert letters["b"] == pytest.approx(7)
    assert not any(set(words) & set(signs) for words in letters)


SHAPES = {
    "█": "#### #### #### ####", "▀": "#### #### .... ....", "▄": ".... .... #### ####", "▌": "##.. ##.. ##.. ##..",
    "▐": "..## ..## ..## ..##", "▂": ".... .... .... ####", "▆": ".... #### #### ####", "▎": "#... #... #... #...",
    "▊": "###. ###. ###. ###.", "▖": ".... .... ##.. ##..", "▚": "##.. ##.. ..## ..##", "▟": "..## ..## #### ####",
}  # fmt: skip
"""Sixteen points of a cell that a block covers."""
LINES_OF = {"─": "lr", "│": "ud", "╭": "rd", "┐": "ld", "└": "ru", "╯": "lu", "├": "rud", "┬": "lrd", "┼": "lrud"}


def covered(sign: str, across: float, down: float) -> bool:
    """Whether a sign covers the point at a fraction of its cell."""
    root = ElementTree.fromstring(picture([sign], ".svg", Terminal(width=80, depth="truecolor")))
    x, y = CELL * across, 1.5 + 24.4 * down
    (drawn,) = root.iter(f"{SVG}path")
    corners = re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H\1z", drawn.attrib["d"])
    boxes = (map(float, box) for box in corners)
    return any(left <= x <= right and upper <= y <= lower for left, upper, right, lower in boxes)


@pytest.mark.parametrize("sign", SHAPES)
def test_a_block_is_drawn_as_the_part_of_its_cell_that_it_names(sign: str) -> None:
    points = [(column + 0.5) / 4 for column in range(4)]
    rows = ("".join(".#"[covered(sign, across, down)] for across in points) for down in points)
    assert " ".join(rows) == SHAPES[sign]


@pytest.mark.parametrize("sign", LINES_OF)
def test_a_line_reaches_the_edges_at_which_it_goes_on(sign: str) -> None:
    """So that a rule is one stroke in a program whose font is lower than a line."""
    edges = {"l": (0.01, 0.5), "r": (0.99, 0.5), "u": (0.5, 0.01), "d": (0.5, 0.99)}
    assert "".join(arm for arm, at in edges.items() if covered(sign, *at)) == LINES_OF[sign]


def test_no_picture_of_the_pages_has_a_block_or_a_line_as_a_letter() -> None:
    for path in (ROOT / "samples" / "pictures").glob("*.svg"):
        if path.stem != "explore":  # Textual draws it
            assert not set(words_of(path)) & {*SHAPES, *LINES_OF}, path.stem


def test_a_check_that_fails_stays_in_a_figure(tinytf: Tinytf, tmp_path: Path) -> None:
    from tinytf_cli.views.blocks import Line, as_figure
    from tinytf_cli.views.parts import verdict

    lines = [Line("tiny", lead=True), Line(""), Line("a"), Line(""), verdict(True, "sums"), verdict(False, "sums")]
    assert list(as_figure(lines)) == [Line("a"), Line(""), verdict(False, "sums")]


def require_cairo() -> None:
    """Skip without CairoSVG, or without the library of the system that it needs."""
    try:
        import cairosvg  # noqa: F401
    except (ImportError, OSError):
        pytest.skip("CairoSVG or libcairo is missing")


@pytest.mark.exhaustive  # it takes a font of those that the picture names
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_box_drawing_signs_stand_below_each_other_in_a_png(theme: str) -> None:
    image = pytest.importorskip("PIL.Image")
    require_cairo()
    screen = Terminal(width=12, depth="truecolor", theme=theme)
    svg = picture(["iiii│WWWW", "WWWW│iiii", "·.,:│√⊙─┼"], ".svg", screen)
    pixels = np.asarray(image.open(BytesIO(printed(svg, ".png"))).convert("L")).astype(float)
    assert pixels.shape[1] == pytest.approx(2 * float(svg.split('viewBox="0 0 ')[1].split()[0]), abs=1)
    across = pixels[48:-48, round(2 * 4 * CELL) + 18 : round(2 * 5 * CELL) + 18]  # the column of the bar
    strokes = np.abs(across - pixels[20, 20]) > 100
    assert strokes.any(axis=0).sum() <= 6, "the bars of three lines are one stroke"


@pytest.mark.slow
def test_a_png_and_a_pdf_are_drawn_of_what_an_svg_shows(tinytf: Tinytf, tmp_path: Path) -> None:
    require_cairo()
    for name, start in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("graph.png", b"\x89PNG")):
        line = ("circuit", "--pairs", "samples/lost.jsonl") if "graph" in name else ("trace", "The cat sat")
        assert tinytf(*line, "-o", tmp_path / name).status == 0
        assert (tmp_path / name).read_bytes().startswith(start)


def test_without_cairosvg_a_png_is_one_line_and_the_command_that_installs_it(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    ran = tinytf("trace", "The cat", "-o", tmp_path / "a.png")
    assert is_a_clean_error(ran)
    assert 'pip install "tinytf[picture]"' in ran.err
    assert not (tmp_path / "a.png").exists()


def test_a_picture_too_high_for_a_png_is_refused() -> None:
    require_cairo()
    svg = picture(["a"] * 1400, ".svg", Terminal(width=20, depth="truecolor"))
    with pytest.raises(Exception, match=r"pixels high, and a PNG has at most 32,767"):
        printed(svg, ".png")
