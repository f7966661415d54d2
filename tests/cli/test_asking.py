"""What people type for commands, options and questions leads to something that exists and answers."""

import shlex

import click
import pytest
from driving import Tinytf, is_a_clean_error

from tinytf.glossary import spellings
from tinytf.nearest import did_you_mean
from tinytf_cli.asking import COMMANDS_MEANT, OPTIONS_MEANT, QUESTIONS, answering, option_meant, with_text
from tinytf_cli.main import COMMANDS, EVERY, cli
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS

ASKED = {
    "why L0H0.weights[2,1]?": "explain 'L0H0.weights[2,1]'",
    "How is L0.mid[0,1] computed?": "explain 'L0.mid[0,1]'",
    "why mat not rug?": "attribute --token mat --versus rug",
    "why?": "attribute",
    "why mat?": "attribute --token mat",
    "when did it know?": "lens",
    "when did it know that it is mat": "lens --track mat",
    "what does L1H0 do?": "attention --head L1H0",
    "what is L0.norm1?": "help L0.norm1",
    "where does L1H0 look?": "attention --head L1H0",
    "where does it look?": "attention",
    "what happens without L1H0?": "ablate --at L1H0",
    "which heads matter most?": "attribute",
    "which heads are there?": "heads",
    "what comes next?": "lens",
    "what's next?": "lens",
    "how likely is mat?": "lens --track mat",
    "how sure is it?": "score",
    "how many layers?": "info",
    "what model is this?": "info",
    "what is softmax?": "help softmax",
    "whats Q?": "help Q",
}
SENTENCES = (
    "The cat sat on the mat", "Why is the sky blue?", "What is the capital of France?", "When Mary and John went to",
    "where is the cat?", "How many sheep are in the barn?", "Who is it?", "attention", "why not?!x", "",
)  # fmt: skip


def _parsed(line: str) -> None:
    """Raises UsageError where a line of the shell names no command, or an option that it has not."""
    name, *rest = shlex.split(line.removeprefix("tinytf "))
    if name == "help":
        return
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, rest)


def test_every_form_of_a_question_is_asked_here_and_says_its_line() -> None:
    assert {question: answering(question, spellings()) for question in ASKED} == ASKED
    assert {line.split()[0] for line in QUESTIONS.values()} <= {line.split()[0] for line in ASKED.values()}
    assert [sentence for sentence in SENTENCES if answering(sentence, spellings())] == []


@pytest.mark.parametrize("question", ASKED)
def test_the_session_runs_the_line_and_so_does_the_shell_or_it_names_the_command_that_needs_a_text(
    question: str, tinytf: Tinytf
) -> None:
    session = Session(VERBS)
    assert session.execute("run --quiet The cat sat on the").status == 0
    ran = session.execute(question)
    assert (ran.status, ran.failure) == (0, None)
    assert ran.text.startswith(f"that is: {ASKED[question]}\n")
    assert ran.text == f"that is: {ASKED[question]}\n{session.execute(ASKED[question]).text}"
    shell = with_text(ASKED[question])
    _parsed(shell)
    answered = tinytf(question)
    if "TEXT" in shell:
        assert is_a_clean_error(answered)
        assert f"hint: {shell} answers that" in answered.err
    else:
        assert (answered.status, answered.err) == (0, f"tinytf: that is: {shell}\n")
        assert answered.out == tinytf(*shlex.split(shell)[1:]).out


def test_a_sentence_is_still_run_as_a_text() -> None:
    session = Session(VERBS)
    for sentence in ("Why is the sky blue?", "What is the capital of France?"):
        assert session.execute(sentence).status == 0
        assert session.run is not None
        assert session.run.text == sentence


def test_words_typed_for_commands_lead_to_commands_that_exist(tinytf: Tinytf) -> None:
    words = [word for words in COMMANDS_MEANT.values() for word in words.split()]
    assert len(words) == len({*words})
    assert not {*words} & {*COMMANDS}
    for meant, typed in COMMANDS_MEANT.items():
        _parsed(meant)
        failed = tinytf(typed.split()[0])
        assert is_a_clean_error(failed)
        assert f"hint: tinytf {meant} does that" in failed.err
    session = Session(VERBS)
    failure = session.execute("loss").failure
    assert failure is not None
    assert failure.hint == "score does that"


def test_options_of_other_programs_lead_to_an_option_that_the_command_has(tinytf: Tinytf) -> None:
    options = {
        name: {opt for parameter in command.params for opt in parameter.opts}
        for name in EVERY
        if (command := cli.get_command(click.Context(cli), name)) is not None
    }
    for meant, names in OPTIONS_MEANT.items():
        having = [known for known in options.values() if meant in known]
        assert having
        for name in names.split():
            assert any(option_meant(name, known) == meant and name not in known for known in having)
    for line, hint in {
        "generate hi -n 5": "--max-tokens (New tokens, at most) or --n (Draw N texts in parallel)?",
        "train x --learning-rate 1e-3": "did you mean --lr (",
        "train x --epochs 3": "did you mean --steps (",
        "score hi --gpu": "did you mean --device (",
    }.items():
        failed = tinytf(*line.split())
        assert failed.status == 2
        assert hint in failed.err


def test_a_suggestion_is_near_in_spelling() -> None:
    for typed, known, near in (
        ("backward", ["card", "heads"], ""), ("gard", ["grad", "card"], "grad"), ("trce", ["trace", "card"], "trace"),
        ("tarce", ["trace"], "trace"), ("optimizer", ["optimiser"], "optimiser"), ("what", ["heat"], ""),
    ):  # fmt: skip
        assert did_you_mean(typed, known, otherwise="none").startswith(f"did you mean {near}?" if near else "known")


def test_a_word_or_a_verb_that_is_typed_as_a_command_is_explained(tinytf: Tinytf) -> None:
    assert "hint: tinytf help mask says what it is" in tinytf("mask").err
    assert "hint: it is a verb of the session: type tinytf, run a text, then heat L0H0" in tinytf("heat").err
