"""How a typed line is read."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinytf.errors import PlacedError, UsageError
from tinytf_cli.repl.line import LONGEST, read_line, shell_quoted


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run The cat", ("run", "The", "cat")),
        ("  run\t'a  b' ", ("run", "a  b")),
        ('run "it\'s" x', ("run", "it's", "x")),
        (r'run "a\"b\\c\n"', ("run", 'a"b\\c\\n')),
        (r"run don\'t a\ b \n", ("run", "don't", "a b", r"\n")),
        ('run a"b c"d', ("run", "ab cd")),
        ('run ""', ("run", "")),
        ("heat L0 # a note | x", ("heat", "L0")),
        ("explain logits[0,#17]", ("explain", "logits[0,#17]")),
        ("# all of it", ()),
        ("", ()),
        ('run "a # b"', ("run", "a # b")),
        ("run a|b c>d", ("run", "a|b", "c>d")),
        (r"run \| \> \#", ("run", "|", ">", "#")),
        ("run The cat's hat, the dogs' tails", ("run", "The", "cat's", "hat,", "the", "dogs'", "tails")),
        ("run 'a b' c's", ("run", "a b", "c's")),
    ],
)
def test_words_are_split_as_a_shell_does(line: str, words: tuple[str, ...]) -> None:
    typed = read_line(line)
    assert typed.words == words
    assert typed.sign == ""


@pytest.mark.parametrize(
    ("line", "words", "sign", "target"),
    [
        ("heat L0 | head -3 | cat", ("heat", "L0"), "|", "head -3 | cat"),
        ("heat L0 |head", ("heat", "L0"), "|", "head"),
        ("heat L0 > 'a b.txt'", ("heat", "L0"), ">", "a b.txt"),
        ("heat L0 >x.txt # so", ("heat", "L0"), ">", "x.txt"),
        ("| wc", (), "|", "wc"),
        ("> x.svg", (), ">", "x.svg"),
        ("! 1 + 1 # x", (), "!", "1 + 1 # x"),
        ("!!", (), "!", "!"),
    ],
)
def test_output_goes_where_a_line_says(line: str, words: tuple[str, ...], sign: str, target: str) -> None:
    typed = read_line(line)
    assert (typed.words, typed.sign, typed.target) == (words, sign, target)


def test_a_comparison_is_no_file_where_the_verb_takes_one() -> None:
    typed = read_line("break L0 if max > 3 # so", lambda word: word != "break")
    assert (typed.sign, typed.rest, typed.rest_at) == ("", "L0 if max > 3", 6)


@pytest.mark.parametrize(
    ("line", "column"),
    [('run "a', 4), ("run 'don", 4), ("heat >", 5), ("heat |", 5), ("heat > a b", 9), ("heat >> a", 5), ('x > "a', 4)],
)
def test_what_cannot_be_read_points_at_the_place(line: str, column: int) -> None:
    with pytest.raises(PlacedError) as caught:
        read_line(line)
    assert caught.value.column == column


def test_a_line_is_of_bounded_length() -> None:
    assert len(read_line("run " + "a" * (LONGEST - 4)).words[1]) == LONGEST - 4
    with pytest.raises(UsageError, match="1,000,000 characters"):
        read_line("a" * 1_000_000)


@given(st.text(max_size=60))
def test_a_quoted_word_is_read_back(word: str) -> None:
    assert read_line(f"run {shell_quoted(word)}").words == ("run", word)


@given(st.text(alphabet="+- \t\"'", max_size=30))
def test_quotes_are_those_of_a_posix_shell_but_for_an_apostrophe_after_a_letter(line: str) -> None:
    try:
        expected: list[str] | None = shlex.split(line)
    except ValueError:
        expected = None
    try:
        found: list[str] | None = list(read_line(line).words)
    except PlacedError:
        found = None
    assert found == expected


@given(st.text(max_size=60))
def test_any_line_is_read_or_refused(line: str) -> None:
    column = -1
    try:
        read_line(line)
    except PlacedError as error:
        column = error.column
    assert column < len(line)
