"""What a session draws around its lines: the prompt, what is typed there, its first line, the bar."""

from pathlib import Path
from random import Random

import pytest
from prompt_toolkit.formatted_text import to_plain_text
from prompt_toolkit.layout.screen import Char

from hostile.bases import ours
from hostile.strings import NASTY, text
from hostile.watchdog import acting_in
from tinytf_cli.repl.prompt import bar_of
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.welcome import banner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "m\x1b[31m\u202e\u200b\x07"
    made.mkdir()
    for name, data in ours().items():
        (made / name).write_bytes(data)
    return made


def test_the_bar_and_the_first_line_draw_what_could_act(pytestconfig: pytest.Config, folder: Path) -> None:
    rng, session = Random(0), Session(VERBS, Spec(str(folder)))
    for _ in range(pytestconfig.getoption("hostile") // 10):
        given = text(rng)[:100].replace("\n", " ").replace('"', "")
        session.execute(f'run --truncate "{given}"')
        for width in (20, 80, 200):
            drawn = to_plain_text(bar_of(session).fitted(width)) + banner(session, width)
            assert not acting_in(drawn)
    assert session.run is not None


def test_no_character_that_is_typed_or_pasted_reaches_the_terminal_as_it_is() -> None:
    for char in {char for one in NASTY for char in one} | {chr(code) for code in range(0x3000)}:
        assert not acting_in(Char(char).char), ascii(char)
