"""Python of several lines: typed, pasted, in scripts; Python's own console says which lines are one statement."""

from code import InteractiveConsole
from collections.abc import Callable
from pathlib import Path

import pytest
from driving import Tinytf
from talking import Talk
from typing_keys import ENTER, pasted, typist

from tinytf_cli.repl.python import statements

LOOP = "! for i in range(3):\n    print(i * i)"
DEFINED = "def double(x):\n    y = 2 * x\n\n    return y"
SCRIPT = f"""run --quiet The cat
{LOOP}
! {DEFINED}
! double(21)
! if double(1) > 5:
    print("large")
else:
    print("small")
! (1 +
2)
print L0H0.scores[0,0] /shape
! text = '''a

b'''
! len(text)
"""
SAID = "0\n1\n4\n42\nsmall\n3\n  L0H0.scores[0,0]  1\n4\n"


def whole(text: str) -> list[str]:
    return [found for _, found in statements(enumerate(text.split("\n")))]


def test_a_script_has_blocks_of_python(tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "a.session"
    path.write_text(SCRIPT)
    assert tinytf("repl", "--allow-code", "-f", path).out == SAID
    assert tinytf("repl", stdin=SCRIPT.encode()).out == SAID
    echoed = tinytf("repl", "--allow-code", "-f", path, "--echo").out
    assert "tinytf> ! for i in range(3):\n...     print(i * i)\n0\n1\n4\n" in echoed


def test_what_python_prompts_show_is_python(tinytf: Tinytf) -> None:
    text = ">>> x = [1, 2]\n>>> for one in x:\n...     print(one)\n...\n>>> x[0] + 5\n>>> sum(\n...     x)\n"
    assert tinytf("repl", stdin=text.encode()).out == "1\n2\n6\n3\n"


@pytest.mark.parametrize(
    "code",
    ["x = 1", "for i in x:\n    f(i)", "def f():\n    return 1", "if a:\n  b\nelif c:\n  d\nelse:\n  e", "f(1,\n2)",
     "try:\n    f()\nexcept KeyError:\n    pass\nfinally:\n    g()", "@cached\ndef f():\n    pass", "x = '''\n\na'''",
     "with f() as g:\n    g()", "x = [\n1,\n\n2]"],
)  # fmt: skip
def test_a_block_ends_where_the_console_of_python_ends_it(code: str) -> None:
    console, waits = InteractiveConsole(), False
    console.runcode = lambda code: None  # type: ignore[method-assign]
    for line in [*code.split("\n"), ""]:
        if not waits:
            console.resetbuffer()
        waits = console.push(line)
    assert not waits
    assert whole(f"! {code}\nheat L0H0\n! 1") == [f"! {code}", "heat L0H0", "! 1"]


def test_an_error_in_a_block_is_its_own_and_the_next_line_runs(ran: Talk, tinytf: Tinytf) -> None:
    failed = ran.fails("! for i in range(3):\n    print(1 / i)", 1)
    assert failed.failure is not None
    assert failed.failure.message == "ZeroDivisionError: division by zero"
    assert 'File "<session>", line 2' in ran("!!")
    script = b"! for i in range(2):\nprint L0\n! 1 + 1\n"  # no body: Python says so, and what follows is its own
    outcome = tinytf("repl", "--on-error", "continue", "-f", "-", stdin=script)
    assert "IndentationError" in outcome.err
    assert outcome.out == "2\n"


def test_the_value_that_a_block_ends_in_is_shown(ran: Talk) -> None:
    assert ran("! total = 0\nfor one in trace['probs'][-1]:\n    total += float(one)\nround(total, 4)") == "1.0\n"


def test_a_session_with_blocks_is_saved_and_gives_the_same(ran: Talk, tinytf: Tinytf, tmp_path: Path) -> None:
    path = tmp_path / "a.session"
    for line in (f"! {DEFINED}", "! double(4)", LOOP):
        ran(line)
    ran(f"save {path}")
    assert path.read_text().splitlines()[-7:] == [
        "! def double(x):", "...     y = 2 * x", "... ", "...     return y", "! double(4)",
        "! for i in range(3):", "...     print(i * i)",
    ]  # fmt: skip
    assert tinytf("repl", "--allow-code", "-f", path).out.endswith("8\n0\n1\n4\n")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (f"! for i in range(3):{ENTER}print(i){ENTER}{ENTER}", "0\n1\n2\n"),  # indented by the prompt
        (pasted(LOOP) + ENTER + ENTER, "0\n1\n4\n"),
        ("! " + pasted("import math\nfor i in (1, 4):\n    print(math.sqrt(i))") + ENTER + ENTER, "1.0\n2.0\n"),
        (pasted(">>> x = 3\n>>> if x:\n...     x + 1\n...\n>>> x") + ENTER, "3\n"),
        (f"! (1 +{ENTER}1){ENTER}", "2\n"),
        (pasted(f"! {DEFINED}\n\n! double(5)") + ENTER, "10\n"),
    ],
)
@pytest.mark.slow
def test_python_is_typed_and_pasted_at_the_prompt(
    keys: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with typist(tmp_path, monkeypatch) as typing:
        assert typing(keys) == 0
        assert typing.err.text == ""
        assert typing.out.text.endswith(said)


def test_a_plain_terminal_asks_for_the_rest(talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch) -> None:
    from tinytf_cli.repl.prompt import talk_plainly

    typed = iter(["! for i in range(2):", "    print(i)", "", "quit"])
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return next(typed)

    monkeypatch.setattr("builtins.input", answer)
    begun = talk()
    talk_plainly(begun.session)
    assert begun.out.text == "0\n1\n"
    assert asked == ["tinytf> ", "... ", "... ", "tinytf> "]
