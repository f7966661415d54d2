"""A question for the way to do something leads to a line that does it, and nonsense to none."""

import re
import shlex
from pathlib import Path

import pytest
from driving import Tinytf, is_a_clean_error

from tinytf_cli.asking import NAMES_MEANT, WAYS_MEANT
from tinytf_cli.command import FORMS, load
from tinytf_cli.how import ways
from tinytf_cli.main import COMMANDS, EVERY
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS

ASKED = {
    line.partition(" | ")[0]: line.partition(" | ")[2].split(" / ")
    for line in (Path(__file__).parent / "questions.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
}
NONSENSE = (
    "how do I cook an egg?", "how to win the lottery?", "where is my hat?", "can I eat it?", "how do I fly to Rome?",
    "where is Paris?", "can I go home now?", "how do I get rich?", "how do I bake a cake?", "where is the toilet?",
)  # fmt: skip


@pytest.mark.parametrize("question", ASKED)
def test_a_question_finds_a_line_that_does_it(question: str) -> None:
    found = "\n".join(f"{way.line} {way.about}" for way in ways(question))
    assert re.search(rf"(?<!\w)(?:{'|'.join(map(re.escape, ASKED[question]))})(?!\w)", found)


def test_nonsense_finds_nothing_and_is_told_how_to_see_what_there_is(tinytf: Tinytf) -> None:
    assert [question for question in NONSENSE if ways(question)] == []
    for words in (("help", *NONSENSE[0].split()), (NONSENSE[0],)):
        ran = tinytf(*words)
        assert is_a_clean_error(ran)
        assert ran.err == "tinytf: error: I don't know that\nhint: tinytf --help lists what there is\n"
    failure = Session(VERBS).execute(NONSENSE[0]).failure
    assert failure is not None
    assert (failure.message, failure.hint.split(";")[0]) == ("I don't know that", "help lists what there is")


def test_help_and_the_question_alone_answer_alike_in_the_shell_and_a_session(tinytf: Tinytf) -> None:
    question = "how do I turn off a head?"
    asked, helped = tinytf(*question.split()), tinytf("help", question)
    assert (asked.status, asked.out) == (0, helped.out)
    assert helped.lines[0] == "tinytf ablate TEXT"
    ran = Session(VERBS).execute(question)
    assert ran.text.splitlines()[:2] == [f"that is: help {question.rstrip('?')}", "ablate TEXT"]


def test_words_of_questions_are_of_commands_verbs_and_options_that_exist() -> None:
    options = {name for command in EVERY for parameter in load(command).params for name in parameter.opts}
    assert not {*NAMES_MEANT} - {*COMMANDS, *FORMS, *VERBS, *options}
    for line in WAYS_MEANT:
        name, *rest = shlex.split(line.partition("<")[0])
        assert name == "python" or load(name).make_context(name, rest, resilient_parsing=True).command.name == name


def test_a_command_line_without_a_command_is_that_of_a_text_a_model_or_its_options(
    tinytf: Tinytf, decoder: Path
) -> None:
    for words, meant in (
        (("The cat sat",), ("trace", "The cat sat")),
        (("The", "cat", "sat"), ("trace", "The", "cat", "sat")),
        (("-m", str(decoder), "The cat"), ("trace", "-m", str(decoder), "The cat")),
        (("-m", str(decoder), "score", "The cat sat"), ("score", "-m", str(decoder), "The cat sat")),
        ((str(decoder),), ("info", str(decoder))),
    ):
        ran, typed = tinytf(*words), tinytf(*meant)
        assert (ran.status, ran.out) == (0, typed.out)
        assert ran.err == f"tinytf: that is: {shlex.join(['tinytf', *meant])}\n"
    assert is_a_clean_error(tinytf("tarce", "a", "text"))
