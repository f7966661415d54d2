"""What reaches a terminal: nothing that it could act on, and everything else as it is."""

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinytf.text.printable import printable

everything = st.text(st.characters(codec=None), max_size=60)
ACTED_ON = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}


@settings(max_examples=300, deadline=None)
@given(everything)
@pytest.mark.slow
def test_nothing_that_a_terminal_could_act_on_comes_through(text):
    shown = printable(text)
    assert not any(unicodedata.category(char) in ACTED_ON for char in shown)
    shown.encode("utf-8")


def test_no_single_character_comes_through_that_should_not():
    for code in [*range(0x20000), *range(0xE0000, 0xE0200), sys.maxunicode]:
        shown = printable(chr(code))
        assert shown
        assert shown.isprintable(), hex(code)
        if unicodedata.category(chr(code)) in ACTED_ON:
            assert chr(code) not in shown, hex(code)


@settings(max_examples=300, deadline=None)
@given(everything)
def test_what_is_printable_stays_as_it_is(text):
    for spaces in (True, False):
        once = printable(text, spaces=spaces)
        assert printable(once, spaces=spaces) == once


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the cat", "the·cat"),
        ("a\nb\tc", "a↵b→c"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\r\x00\x7f\x9b", "\\x0d\\x00\\x7f\\x9b"),
        ("\u202egnp", "\\u202egnp"),
        ("\u200b\ufeff", "\\u200b\\ufeff"),
        ("\u2028", "\\u2028"),
        ("\xa0", "\\xa0"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("é e\u0301", "é·e\u0301"),
        ("\u0301", "\u25cc\u0301"),
        ("\x07\u0301", "\\x07\u25cc\u0301"),
        ("שלום 你好 🙂", "שלום·你好·🙂"),
        ("♥\ufe0f", "♥\\ufe0f"),
    ],
)
def test_each_kind_of_character_has_its_form(text, shown):
    assert printable(text) == shown


def test_spaces_can_stay_spaces():
    assert printable("a b\n", spaces=False) == "a b↵"


@pytest.mark.parametrize("code", [0x3164, 0x115F, 0x1160, 0xFFA0, 0x034F, 0x17B4, 0x180B, 0x2800])
def test_a_character_without_a_picture_is_spelled_out(code):
    assert printable("a" + chr(code)) == f"a\\u{code:04x}"
