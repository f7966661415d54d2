"""What save writes runs again and gives the same, whatever was typed."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tinytf_cli.repl.line import read_script
from tinytf_cli.repl.python import statements
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.streams import Capture

LINES = """\
run The cat sat on the|run A dog|The boy lost the|run|model tiny-encoder|model tiny|without L1H2|without L0.ffn
without none|step 7|next|finish|continue|back||goto L1H2.weights|goto L3.ffn|print|print/stats|p L0H1.q /shape|top 2
diff --top 1|diff cat --top 1|diff cat dog --top 1|keep cat|keep dog|keep|use cat|use dog|break L2|tbreak L3.q
break L*.weights[1:] if max > 0.99|watch norm > 60|watch last(max) > max|break|ignore 1 1|ignore 2 3|delete 2|delete
display L0H0.weights|display logits|undisplay|undisplay 1|alias pw print L1H2.weights /stats|alias cat The cat sat
alias pw top 1|alias again run|pw|cat|again|unalias pw|set dims 3|set precision 2|set head 1|undo|redo|undo|redo|history
save|!!|! x = 3|! x|! y|! x = 4; 1/0|! x; y = 1/0|! float(trace['logits'].max())|! print('said')|nonsense|show|list 3
where|# said|tokens|explain L0.ffn[1,2]|heads --top 1|help break|print 'unclosed|print L9|run --quiet A"""
BLOCKS = [
    "! for x in range(3):\n    y = x\n",
    "! def f(a):\n    return a + 1\n\nf(2)",
    ">>> x = (1 +\n... 2)",
    "! f(3)",
    "! if x: y = 2",
]
PIPES = ["| head -2", "history | head -1", "top 3 | tail -1", "| false", "> kept.txt", "> kept.json", "show > kept.txt"]


def replies(lines: list[str]) -> list[tuple[str, bool]]:
    """What a new session writes for each line, and whether the line was done."""
    out = Capture()
    session, found = Session(VERBS, stdout=out, stderr=Capture()), []
    for line in lines:
        written = len(out.text)
        status = session.execute(line).status
        found.append((out.text[written:], status == 0))
    return found


def saved_replies(lines: list[str]) -> list[str]:
    """What the lines write of which a transcript is made, in a new session that saves itself at its end.

    A lone | or > takes the last output; it is left out where a line that is left out wrote that.
    """
    found, lost = [], False
    for line, (text, done) in zip(lines, replies([*lines, "save kept.session --force"]), strict=False):
        alone = line[:1] in ("|", ">")
        kept = done and line != "!!" and line.split(" ")[0] not in ("save", "history") and not (alone and lost)
        if kept:
            found.append(text)
        if text and not alone:
            lost = not kept
    return found


def check(lines: list[str]) -> None:
    typed = [f"save {number}.session" if line == "save" else line for number, line in enumerate(lines)]
    for path in Path().glob("*.session"):
        path.unlink()
    expected = saved_replies(typed)
    again = replies([line for _, line in statements(read_script(Path("kept.session")))][1:])
    assert [done for _, done in again] == [True] * len(again)
    assert "".join(text for text, _ in again) == "".join(expected)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.sampled_from("|".join(LINES.splitlines()).split("|") + BLOCKS), min_size=4, max_size=16))
@example(lines=[*BLOCKS, *BLOCKS, "! x, y"])
@example(lines=["run A dog", "keep dog", "undo", "redo", "use dog", "diff dog --top 1"])
@example(lines=["run A dog", "! x = 1", "! x = 2; 1/0", "! x", "!!", "pw", "alias pw top 2", "pw", "", "step 2", ""])
@pytest.mark.slow
def test_a_session_that_is_saved_gives_the_same_again(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(lines)


@pytest.mark.share(8)
@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("before", ["top 3", "history", "! 1/0", "! x = 3", "save"])
def test_what_a_line_alone_takes_is_the_same_again(
    before: str, pipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(["run A dog", before, pipe, "tokens", pipe])
