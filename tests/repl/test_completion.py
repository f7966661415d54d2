"""What Tab offers, read from the tables of the session; and the colours of what is typed."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talking import Talk

sys.path.insert(0, str(Path(__file__).parent))


from tinytf.errors import TinytfError
from tinytf.trace.address import parse_address
from tinytf_cli.main import COMMANDS
from tinytf_cli.paint.colour import accents
from tinytf_cli.repl.addressing import cell_words
from tinytf_cli.repl.colouring import prompt_style, style_pieces
from tinytf_cli.repl.completing import find_offers
from tinytf_cli.repl.line import pieces_of, read_line
from tinytf_cli.repl.models import Models
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.settings import SETTINGS
from tinytf_cli.repl.state import Spec


@pytest.fixture(scope="module")
def session() -> Session:
    """A session over six tokens, the first and the fifth of which are the same but for the capital."""
    found = Session(VERBS)
    assert found.execute('run --quiet "The cat sat on the mat"').status == 0
    return found


def _offers(session: Session, line: str) -> list[str]:
    return [one.word for one in find_offers(session, line)[1]]


def _about(session: Session, line: str, word: str) -> str:
    return next(one.about for one in find_offers(session, line)[1] if one.word == word)


# What is offered


def test_a_line_begins_with_any_verb_or_command(session: Session) -> None:
    assert set(_offers(session, "")) == ({*session.lexicon.verbs, *COMMANDS} - {"repl"})
    assert _offers(session, "atte") == ["attention"]
    assert _offers(session, "und") == ["undisplay", "undo"]


def test_every_verb_and_command_says_what_it_does(session: Session) -> None:
    assert [one.word for one in find_offers(session, "")[1] if not one.about] == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("heat L", "L3"),
        ("heat L0", "L0H3"),
        ("heat L0", "L0.weights"),
        ("heat L0H", "L0H2"),
        ("heat L0H0", "L0H0.weights"),
        ("heat L0H0.s", "L0H0.scores"),
        ("heat L0-2H*.w", "L0-2H*.weights"),
        ("print embed.", "embed.tokens"),
        ("print wei", "weights"),
        ("goto log", "logits"),
        ("p L1.ffn.h", "L1.ffn.hidden"),
        ("break L1.w", "L1.weights"),
        ("explain L0H0.w", "L0H0.weights"),
        ("print L0.W", "L0.W_Q"),
        ("heat L0H1.W", "L0H1.W_O"),
        ("print L1.norm1", "L1.norm1.gain"),
        ("trace --at L0.ffn.W", "L0.ffn.W_up"),
        ("explain E[c", "E[cat]"),
        ("trace --grad --js", "--json"),
        ("grad --at L0H1.sco", "L0H1.scores"),
        ("heads ", "L2"),
        ("heads L3 --b", "--by"),
        ("heads L3 --by ent", "entropy"),
        ("heads --by=ent", "--by=entropy"),
        ("trace --dtype b", "bfloat16"),
        ("trace --step weig", "weights"),
        ("trace --layer ", "3"),
        ("attention --head L0H", "L0H3"),
        ("attention --row s", "sat"),
        ("top --at ca", "cat"),
        ("heads --", "--by"),
        ("heads --", "--model"),
        ("generate --model tiny-", "tiny-encoder"),
        ("model preset:gpt2", "preset:gpt2"),
        ("set col", "color"),
        ("set colormap v", "viridis"),
        ("set pager o", "on"),
        ("show prec", "precision"),
        ("print/st", "print/stats"),
        ("print/stats L0.ffn.h", "L0.ffn.hidden"),
        ("print L0.ffn /v", "/values"),
        ("watch ma", "max"),
        ("break L0.weights i", "if"),
        ("break L0.weights if max > 0.9 and (ent", "(entropy"),
        ("help cond", "conditions"),
        ("help brea", "break"),
        ("! tr", "trace"),
        ("! torch.softmax(mod", "model"),
    ],
)
def test_what_can_stand_there_is_offered(session: Session, line: str, word: str) -> None:
    assert word in _offers(session, line)


def test_without_is_offered_what_a_model_can_go_without(session: Session) -> None:
    assert _offers(session, "without ") == ["L0", "L1", "L2", "L3", "scaling", "mask", "positions", "none"]
    assert _offers(session, "without L2.") == ["L2.in", "L2.attn", "L2.ffn", "L2.out"]
    assert _offers(session, "without L0H3 L2H") == ["L2H0", "L2H1", "L2H2", "L2H3"]


def test_a_head_is_offered_without_its_steps(session: Session) -> None:
    assert _offers(session, "attention --head ") == ["L0", "L1", "L2", "L3"]
    assert _offers(session, "attention --head L1H") == ["L1H0", "L1H1", "L1H2", "L1H3"]


def test_grad_is_offered_addresses(session: Session) -> None:
    assert "logits" in _offers(session, "grad ")
    assert "L0H1.scores" in _offers(session, "grad L0H1.sc")


def test_of_files_a_model_is_offered_folders_and_gguf(session: Session, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("notes.txt", "one.gguf"):
        (tmp_path / name).touch()
    assert _offers(session, f"model {tmp_path}/") == [f"{tmp_path}/one.gguf", f"{tmp_path}/run/"]


@pytest.mark.parametrize(
    "line",
    ["run The c", 'run "L0', "heat L0H0.ffn", "heat L9", "nonsense ", "# com", "trace # --js", "! f(x).",
     "generate -- -"],
)  # fmt: skip
def test_nothing_is_offered_where_nothing_is_known(session: Session, line: str) -> None:
    assert _offers(session, line) == []


def test_cells_are_offered_by_the_tokens_of_the_text(session: Session) -> None:
    assert _offers(session, "explain L0H0.weights[sa") == ["L0H0.weights[sat,"]
    assert _offers(session, "explain L0H0.weights[sat,") == [
        f"L0H0.weights[sat,{word}]" for word in ("The", "cat", "sat", "on", "the", "mat")
    ]
    assert _about(session, "explain L0H0.weights[sat,c", "L0H0.weights[sat,cat]") == "key 1, ·cat"
    assert _offers(session, "print logits[ma") == ["logits[mat,"]


def test_every_cell_that_is_offered_is_understood_as_that_token(session: Session) -> None:
    words = cell_words(session.tokens)
    assert [session.trace.index(word, "token", len(words)) for word in words] == list(range(len(words)))


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6))
def test_a_token_is_named_by_a_word_that_splits_as_one_or_by_its_number(tokens: list[str]) -> None:
    for number, word in enumerate(cell_words(tuple(tokens))):
        assert read_line(f"heat L0H0.weights[{word},0]").words[1] == f"L0H0.weights[{word},0]"
        assert "," not in word
        assert word == str(number) or not word.isdecimal()


def test_every_address_that_is_offered_is_one(session: Session) -> None:
    beginnings = ["", "L", "L0", "L0H", "L0H0", "L0H0.", "L0.", "L*.", "e", "L3.ffn"]
    for begun in beginnings:
        words = _offers(session, f"goto {begun}")
        assert words
        for word in words:
            assert str(parse_address(word, session.table))


def test_settings_are_offered_with_what_they_are_now(session: Session) -> None:
    assert _offers(session, "set ") == list(SETTINGS)
    assert _about(session, "set di", "dims").startswith("auto: ")


def test_what_is_displayed_and_where_it_stops_is_offered_to_be_taken_away() -> None:
    session = Session(VERBS)
    for line in ('run --quiet "The cat"', "display L0H1.weights", "break L1.weights if max > 0.9"):
        assert session.execute(line).status == 0
    assert _offers(session, "undisplay ") == ["L0H1.weights"]
    assert _about(session, "delete ", "1") == "L1.weights if max > 0.9"


def test_files_are_offered_quoted_where_they_must_be(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "look.session").write_text("where\n")
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a folder" / "it's.session").write_text("where\n")
    (tmp_path / ".hidden").write_text("")
    assert _offers(session, "source ") == ['"a folder/', "look.session"]
    assert _offers(session, 'source "a folder/i') == ['"a folder/it\'s.session"']
    assert _offers(session, "heat L0H0 > lo") == ["look.session"]
    assert _offers(session, "heat L0H0 | head lo") == ["look.session"]
    assert _offers(session, "save .h") == [".hidden"]
    assert _offers(session, "source /nowhere/at/all/") == []
    for line in ("source ", 'source "a folder/i'):
        start, offers = find_offers(session, line)
        for one in offers:
            if not one.word.endswith("/"):
                words = read_line(line[: len(line) + start] + one.word).words
                assert (tmp_path / words[1]).exists()


def test_nothing_is_opened_for_a_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(VERBS, Spec("no such model"))
    monkeypatch.setattr(Models, "model", lambda self, spec: pytest.fail("it was opened"))
    for line in ("", "heat L0H", "heat L0H0.weights[", "set ", "model ", "trace --layer ", "watch ", "undisplay ",
                 "explain L0", "heads ", "trace --step w", "goto "):  # fmt: skip
        list(find_offers(session, line)[1])
        style_pieces(session, line)
    assert not session.is_open


def test_addresses_are_offered_before_the_model_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(VERBS, Spec("tiny-encoder"))
    monkeypatch.setattr(Models, "model", lambda self, spec: pytest.fail("it was opened"))
    assert _offers(session, "break L1H") == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert "max" in _offers(session, "watch ma")
    assert _offers(Session(VERBS, Spec("hub:ORG/NAME")), "break L1H") == []


# Pieces and colours


@given(st.text(alphabet="ab L0[],.\"'\\|>#!-/ \t🐈", max_size=30))
@settings(max_examples=300)
def test_the_pieces_of_a_line_are_the_line_and_its_words_are_those_that_are_run(line: str) -> None:
    pieces = pieces_of(line)
    assert "".join(line[piece.start : piece.end] for piece in pieces) == line
    try:
        typed = read_line(line)
    except TinytfError:
        return
    if typed.sign != "!":
        assert tuple(piece.word for piece in pieces if piece.kind == "word") == typed.words


@given(st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_colours_change_no_character_and_completion_never_fails(line: str) -> None:
    session = Session(VERBS)
    assert "".join(fragment[1] for fragment in style_pieces(session, line)) == line
    list(find_offers(session, line)[1])


@pytest.mark.parametrize(
    ("line", "word", "style"),
    [
        ("heat L0H0", "heat", "class:verb"),
        ("he", "he", ""),
        ("hea L0H0", "hea", ""),
        ("nonsense", "nonsense", "class:wrong"),
        ("heat L0H0.weights", "L0H0.weights", "class:role.attention"),
        ("heat L0H0.q", "L0H0.q", "class:role.q"),
        ("print L1.ffn.act[cat,3]", "L1.ffn.act[cat,3]", "class:role.ffn"),
        ("print logits", "logits", "class:role.output"),
        ("step 5", "5", "class:number"),
        ("heads --by entropy", "--by", "class:option"),
        ("print L0.ffn /stats", "/stats", "class:option"),
        ('run "The cat"', '"The cat"', "class:string"),
        ("run step 5", "5", ""),
        ("break L0.weights if max > 0.9", "if", "class:keyword"),
        ("break L0.weights if max > 0.9", "0.9", "class:number"),
        ("where # here", "# here", "class:comment"),
        ("heat L0H0 > map.svg", ">", "class:sign"),
        ("! for x in trace: pass", "for", "class:pygments.keyword"),
        ("! trace['L0.ffn']", "L0.ffn", "class:pygments.literal.string.single"),
    ],
)
def test_a_piece_has_the_colour_of_what_it_is(session: Session, line: str, word: str, style: str) -> None:
    assert (style, word) in [(fragment[0], fragment[1]) for fragment in style_pieces(session, line)]


def test_an_address_has_its_colour_before_a_model_is_open() -> None:
    assert ("class:role.attention", "L0.weights") in style_pieces(Session(VERBS), "break L0.weights")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_what_is_typed_has_only_the_accents_of_its_theme(theme: str) -> None:
    """They are readable on its background (test_colour.py); nothing else stands on the terminal's own."""
    for name, rule in prompt_style(theme).style_rules:
        colours = {part for part in rule.split() if part.startswith("#")}
        assert colours <= set(accents(theme).values()) or "bg:" in rule, name


@pytest.mark.parametrize("line", ["break L0.W", "goto L0.W", "grad --at L0.W", "display L0.W", "print L0H1.n", "p W_U"])
def test_a_parameter_is_offered_only_where_it_is_taken_and_there(session: Session, line: str) -> None:
    assert _offers(session, line) == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("break L*.out if rank(ma", "rank(mat)"),
        ("break L*.out if max > 1 and prob(·ba", "prob(·ball)"),
        ("grad --target ma", "mat"),
        ("attribute --versus ·ba", "·ball"),
        ("lens --track ba", "ball"),
        ("print E[ma", "E[mat]"),
    ],
)
def test_tokens_of_the_vocabulary_are_offered_where_one_is_awaited(ran: Talk, line: str, word: str) -> None:
    """Each is a word that the model takes for that token; the text has neither mat nor ball."""
    model = ran.session.model
    about = {one.word: one.about for one in find_offers(ran.session, line)[1]}
    assert word in about
    for other, said in about.items():
        token_id = model.find_token(re.split(r"[(\[]", other)[-1].rstrip(")]"))
        assert said == f"token {token_id}, {model.tokenizer.shown(token_id)}"


def test_a_cell_of_the_vocabulary_gets_the_number_of_a_token(ran: Talk) -> None:
    offers = {one.about: one.word for one in find_offers(ran.session, "print logits[-1,ma")[1]}
    number = ran.session.model.find_token("mat")
    assert offers["·mat"] == f"logits[-1,{number}]"
    assert str(ran.session.trace[offers["·mat"]].item())[:6] in ran(f"print {offers['·mat']} /values")


def test_no_model_is_opened_to_complete_a_token(talk: Callable[..., Talk]) -> None:
    begun = talk()
    assert list(find_offers(begun.session, "grad --target ma")[1]) == []
    assert not begun.session.is_open


def test_attributes_of_python_objects_are_offered(ran: Talk) -> None:
    ran("! mine = {'a': 1}")

    def words(line: str) -> set[str]:
        return {one.word for one in find_offers(ran.session, line)[1]}

    assert {"encoding", "tokens", "address"} <= words("! trace.")
    assert words("! trace.enc") == {"encoding"}
    assert words("! trace.encoding.id") == {"ids"}
    assert words("! len(mine.ke") == {"keys"}
    assert words("! mi") == {"mine"}
    assert words('! trace["L1H2.w') == {"L1H2.weights"}
    assert words("! trace.logits_at(1).") == set()
    assert words("! 'trace.") == set()
    assert not any(word.startswith("_") for word in words("! model."))
