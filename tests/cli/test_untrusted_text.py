"""Nothing that a user, a file or a model says can act on a terminal, become markup, or move a column."""

import json
import re
import shutil
import unicodedata
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from driving import WIDE, Tinytf, is_a_clean_error
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tinytf.text.printable import printable

HOSTILE = {
    "NUL": "\x00",
    "escape": "\x1b[31m",
    "clipboard": "\x1b]52;c;aGVsbG8=\x07",
    "title": "\x1b]0;owned\x1b\\",
    "C1": "\x9b31m",
    "bell and backspace": "\x07\x08\x7f",
    "carriage return": "\r",
    "right to left": "\u202egnp.exe\u202c",
    "isolate": "\u2066\u2069",
    "zero width": "\u200b\u200d\ufeff",
    "tags": "\U000e0041",
    "line separator": "\u2028\u2029\u0085",
}
ALL = "cat" + " ".join(HOSTILE.values()) + "dog"

_FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def acting(text: str) -> list[str]:
    """The characters of some output that could act on a terminal or hide; line ends are not among them."""
    return [char for char in text if unicodedata.category(char) in _FORBIDDEN and char != "\n"]


@pytest.mark.share(4)
@pytest.mark.parametrize("command", ["tokens", "trace", "attention"])
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--plain"],
        ["--ascii"],
        ["--json"],
        ["--format", "ndjson"],
        ["--json", "--ascii"],
        ["--color", "always"],
        ["--color", "always", "--ascii"],
    ],
    ids=" ".join,
)
def test_hostile_text_never_reaches_the_stream_as_it_is(
    tinytf: Tinytf, decoder: Path, command: str, options: list[str]
) -> None:
    ran = tinytf(command, ALL, "-m", decoder, "--truncate", *options)
    assert (ran.status, ran.err) == (0, "")
    out = _COLOUR.sub("", ran.out) if "always" in options else ran.out
    assert acting(out) == []


@pytest.mark.parametrize("command", ["tokens", "trace", "attention"])
@pytest.mark.parametrize("extension", ["txt", "json", "ndjson", "html", "svg"])
def test_hostile_text_never_reaches_a_file_as_it_is(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, command: str, extension: str
) -> None:
    path = tmp_path / f"out.{extension}"
    ran = tinytf(command, ALL, "-m", decoder, "--truncate", "-o", path)
    assert ran.status == 0
    assert acting(path.read_text("utf-8")) == []


def test_json_gives_hostile_text_back_exactly(tinytf: Tinytf, decoder: Path) -> None:
    for options in ([], ["--ascii"]):
        data = json.loads(tinytf("tokens", ALL, "-m", decoder, "--json", *options).out)
        assert data["text"] == ALL
        assert bytes.fromhex("".join(token["bytes"] for token in data["tokens"])).decode() == ALL


# A NUL cannot be in an argument.
@pytest.mark.parametrize("word", [bad for bad in HOSTILE.values() if "\x00" not in bad])
def test_errors_and_hints_do_not_act_either(tinytf: Tinytf, decoder: Path, tmp_path: Path, word: str) -> None:
    for arguments in (
        ["trace", "a", "-m", f"x{word}"],
        ["trace", "a", "-m", f"preset:{word}"],
        ["trace", "a", "-m", decoder, "--at", f"L0.{word}"],
        ["trace", "a", "-m", decoder, "--step", word],
        ["attention", "a", "-m", decoder, "--head", "L0H0", "--row", f"x{word}"],
        ["attention", f"{word} b", "-m", decoder, "--head", "L0H0", "--row", "zebra"],
        ["attention", "a", "-m", decoder, "--head", "L0H0", "--window", word],
        ["trace", "a", f"--opt{word}"],
        ["trace", "a", "--format", word],
        [f"x{word}"],
        ["trace", "a", "-o", f"{tmp_path}/x{word}.docx"],
        ["trace", "a", "-o", f"{tmp_path}/{word}/x.txt"],
        ["train", f"{tmp_path}/x{word}", "--out", tmp_path / "run"],
        ["info", f"{tmp_path}/x{word}"],
    ):
        ran = tinytf(*arguments)
        assert is_a_clean_error(ran, ran.status), arguments
        assert ran.status in (1, 2)


_NAME = "m\x1b[31m\x1b]52;c;aGk=\x07\u202e\nX"


@pytest.fixture
def hostile_folder(decoder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / _NAME
    try:
        shutil.copytree(decoder, folder)
    except OSError:
        pytest.skip("this file system takes no such name")
    return folder


@pytest.mark.parametrize("command", ["tokens", "trace", "attention", "info"])
@pytest.mark.parametrize("options", [[], ["--plain"], ["--json"], ["--format", "ndjson"]], ids=" ".join)
def test_the_name_of_a_model_folder_does_not_act(
    tinytf: Tinytf, hostile_folder: Path, command: str, options: list[str]
) -> None:
    arguments = [hostile_folder] if command == "info" else ["The cat", "-m", hostile_folder]
    ran = tinytf(command, *arguments, *options)
    assert (ran.status, ran.err) == (0, "")
    assert acting(ran.out) == []


def test_the_note_about_a_written_file_does_not_act(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    ran = tinytf("tokens", "a", "-m", decoder, "-o", tmp_path / f"{_NAME}.txt")
    assert ran.status == 0
    assert acting(ran.err) == []
    assert ran.err.count("\n") == 1


def test_a_folder_name_that_is_no_utf8_is_shown(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    try:
        shutil.copytree(decoder, folder)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such name")
    for options in ([], ["--json"], ["--plain"], ["--ascii"]):
        ran = tinytf("tokens", "The cat", "-m", folder, *options)
        assert (ran.status, ran.err) == (0, "")
    path = tmp_path / "out.json"
    assert tinytf("tokens", "The cat", "-m", folder, "-o", path).status == 0
    json.loads(path.read_text("utf-8"))


def test_the_special_tokens_of_a_tokenizer_file_do_not_act(tinytf: Tinytf, encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(encoder, folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text("utf-8").replace("[CLS]", "[\\u001b]0;x\\u0007]"), "utf-8")
    for options in ([], ["--plain"], ["--ascii"], ["--json"]):
        ran = tinytf("trace", "The cat", "-m", folder, *options)
        assert ran.status == 0
        assert acting(ran.out) == []


MARKUP = "[bold]x[/bold] [/] :smile: [link=http://a]b[/link] <b>&amp;</b> \\[red]"


def _shown_text(tinytf: Tinytf, decoder: Path, *options: object) -> str:
    """The tokens of MARKUP as shown, put together again."""
    ran = tinytf("tokens", MARKUP, "-m", decoder, "--json", *options)
    return "".join(token["shown"] for token in json.loads(ran.out)["tokens"]).replace("·", " ")


def test_markup_in_a_text_is_shown_as_it_is(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    assert _shown_text(tinytf, decoder) == MARKUP
    wanted = MARKUP.replace(" ", "·")
    out = tinytf("tokens", MARKUP, "-m", decoder, "--width", "1000").out
    assert wanted in out.replace("│", "")
    colourful = tinytf("tokens", MARKUP, "-m", decoder, "--width", "1000", "--color", "always").out
    assert wanted in _COLOUR.sub("", colourful)


@pytest.mark.parametrize("extension", ["html", "svg"])
def test_markup_in_a_text_is_shown_as_it_is_in_pictures(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, extension: str
) -> None:
    path = tmp_path / f"a.{extension}"
    assert tinytf("tokens", MARKUP, "-m", decoder, "--width", "300", "-o", path).status == 0
    if extension == "svg":
        texts = "".join(element.text or "" for element in ElementTree.parse(path).iter() if "text" in element.tag)
    else:
        from html.parser import HTMLParser

        texts = ""

        class Reader(HTMLParser):
            def handle_data(self, data: str) -> None:
                nonlocal texts
                texts += data

        Reader().feed(path.read_text("utf-8"))
    assert MARKUP.replace(" ", "·") in texts.replace("\xa0", " ").replace("\n", "")
    assert "😄" not in texts


# Columns.


def test_no_character_becomes_wider_or_narrower_by_what_stands_before_it() -> None:
    """What a column is padded to has to be what it takes, however the pieces are put together."""
    for text in WIDE.values():
        shown = [printable(char) for char in text]
        assert cell_len("".join(shown)) == sum(map(cell_len, shown)), text


@pytest.fixture(params=["decoder", "characters"])
def either(request: pytest.FixtureRequest) -> Path:
    """A model of bytes and one of whole characters."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("text", WIDE.values(), ids=WIDE)
def test_wide_and_combining_characters_keep_the_columns_of_the_token_table(
    tinytf: Tinytf, either: Path, text: str
) -> None:
    lines = tinytf("tokens", text, "-m", either, "--width", "1000").lines
    start = next(i for i, line in enumerate(lines) if line.split()[:3] == ["#", "piece", "id"])
    end = cell_len(lines[start][: lines[start].index("offsets") + len("offsets")])
    for line in lines[start + 1 :]:
        offsets = re.search(r"\b\d+:\d+\b", line)
        assert offsets is not None, line
        assert cell_len(line[: offsets.end()]) == end, line


@pytest.mark.parametrize("text", WIDE.values(), ids=WIDE)
@pytest.mark.parametrize("options", [[], ["--color", "always"]], ids=["shades", "colours"])
def test_wide_and_combining_characters_keep_the_columns_of_a_map(
    tinytf: Tinytf, either: Path, text: str, options: list[str]
) -> None:
    ran = tinytf("attention", text, "-m", either, "--head", "L0H0", "--width", "1000", "--window", ":", *options)
    assert ran.status == 0
    lines = [_COLOUR.sub("", line) for line in ran.lines]
    start = next(i for i, line in enumerate(lines) if line.startswith("L0H0.weights")) + 2
    rows = [line for line in lines[start:] if re.search(r"[01]\.\d{3}", line)]
    ends = [[cell_len(line[: m.end()]) for m in re.finditer(r"[01]\.\d{3}", line)] for line in rows]
    assert [len(row) for row in ends] == list(range(1, len(ends) + 1))  # causal: one more in each row
    for row in ends:
        assert row == ends[-1][: len(row)]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(lambda text: text != "-"))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_has_tokens_that_can_be_shown_and_put_together_again(tinytf: Tinytf, decoder: Path, text: str) -> None:
    data = tinytf("tokens", "-m", decoder, "--json", "--", text)
    out = tinytf("tokens", "-m", decoder, "--", text)
    assert (data.status, out.status) == (0, 0)
    assert acting(out.out) == []
    assert acting(data.out) == []
    tokens = json.loads(data.out)["tokens"]
    assert bytes.fromhex("".join(token["bytes"] for token in tokens)).decode() == (text)


@pytest.mark.parametrize("char", ["\u202e", "\ufe0f", "\U000e0100", "\u3164", "\u034f", "\x7f", "\ufeff"])
def test_json_escapes_what_a_terminal_could_act_on_and_gives_it_back(tinytf: Tinytf, decoder: Path, char: str) -> None:
    ran = tinytf("tokens", f"a{char}b", "-m", decoder, "--json")
    assert char not in ran.out
    assert json.loads(ran.out)["text"] == f"a{char}b"
