"""What a stranger's file leaves in a session has no more rights than the file: every field of the state is tried."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from talking import Talk

from tinytf.loading import load
from tinytf_cli.repl import log, state
from tinytf_cli.repl.models import Models
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS, run_each
from tinytf_cli.repl.settings import Settings
from tinytf_cli.repl.state import Alias, Display, Made, Movement, Run, Spec, Stop
from tinytf_cli.repl.streams import Capture
from tinytf_cli.repl.trust import Trust

RUN = "run The cat sat\n"
ATTACKS = {
    "an alias of a line with a pipe": (
        "alias The run The cat | touch owned\nalias sat run The cat > owned.txt",
        "State.aliases Alias.name Alias.line Alias.fence Lexicon._aliases",
    ),
    "an abbreviation that means Python": (
        "alias st ! open('owned', 'w')\nalias s2 st\nalias wh ! open('owned', 'w')",
        "Lexicon.built_in Lexicon.verbs Lexicon._host Session.lexicon Session._scope",
    ),
    "an alias that trusts another file": ("alias st source code --allow-code\nalias con score The -o owned.txt", ""),
    "an alias that is undone": (
        "alias st ! open('owned', 'w')\nset pager on\nundo\nundo\nset dims 3",
        "Session.log Log.lines Entry.line Entry.before Entry.after Entry.undone Entry.done Entry.verb Entry.target",
    ),
    "an alias that is removed": ("alias st ! open('owned', 'w')\nunalias st", "Entry.fence"),
    "a movement with a pipe": (RUN + "step | touch owned", "Session._last_movement Movement.line"),
    "a movement into a file": (RUN + "step -o owned.txt", "Movement.fence"),
    "a movement with a quoted pipe": (RUN + "goto '|touch owned'", "Session.typed"),
    "a movement to a place with a redirection": (RUN + "goto logits > owned.txt", "State.row State.head"),
    "displays": (
        RUN + "display L0H0.q\ndisplay 'L0H0.q|touch owned'",
        "State.displays Display.address Display.fence",
    ),
    "displays into a file": (RUN + "display L0H0.q > owned.txt", "Streams._capture"),
    "stops": (
        RUN + "break L1.q\ntbreak L2.q\nwatch norm > 1\nignore 1 1\nbreak logits if max > 0 | touch owned",
        "State.stops Stop.number Stop.address Stop.condition Stop.once Stop.ignore_count Stop.hits Stop.fence",
    ),
    "a pager": (
        RUN + "set pager on",
        "State.settings Settings.pager Settings.fences Settings.vi Settings.layer Settings.head Streams.page",
    ),
    "how output is drawn": (
        (
            "set width 20\nset precision 9\nset dims 99\nset rows 0\nset theme dark\nset color always\nset ascii on\n"
            "set plain on\nset colormap cividis"
        ),
        (
            "Settings.precision Settings.dims Settings.rows Settings.colormap Settings.theme Settings.color "
            "Settings.width Settings.ascii Settings.plain Streams._lead"
        ),
    ),
    "a model of the hub": (
        f"model hub:org/name\n{RUN}keep theirs",
        "State.spec Spec.name Spec.fence Session._models Models._whole Models._traces",
    ),
    "a model of the hub through transformers": (
        f"model hub:org/name --through transformers\n{RUN}keep theirs",
        "Spec.through Models._through Models._through_traces",
    ),
    "a model of the hub that is changed": (
        f"model hub:org/name\n{RUN}without L0H1 --how mean --reference code\nset L0H0.q[0,0] = 1\nkeep theirs",
        "Spec.without Spec.numbers Ablation.at Ablation.how Ablation.reference Models._changed",
    ),
    "how a model is opened": (
        (
            "model hub:org/name --dtype float64 --seed 3 --device cpu\nmodel tiny --tokenizer hub:org/other\n"
            "model tiny --tokenizer hub:org/name\nkeep theirs\n"
            "model tiny --adapter code"
        ),
        "Spec.device Spec.dtype Spec.seed Spec.adapter Spec.tokenizer Spec.keep_quantized",
    ),
    "runs": (
        f"model hub:org/name\nrun The cat --truncate --force\n{RUN}keep theirs",
        "State.runs State.named_runs Run.spec Run.text Run.truncate Run.force Run.fence",
    ),
    "two texts": (
        "model tiny-translator\nrun 'the third of May' --target-text 1994",
        "Spec.reads",
    ),
    "a last output": (
        RUN + "print L0H0.q | touch owned\nprint L0H0.q",
        "Streams._last Entry.wrote Streams.stdout Streams.stderr",
    ),
    "an error": ("! open('owned', 'w')", "Session.last_error Session.debug Session.keys Session.last_seconds"),
    "a file in a file": (
        "source inner --allow-code",
        "Streams.depth Streams.fence Session.streams Session.interrupt Session.state",
    ),
}
"""Lines of a stranger's file, each tried although the one before fails, and the fields that they are about."""

OWN = (
    "! 6 * 7", "", "st", "s2", "wh", "con", "The cat sat on the mat", "sat on the mat", "", "step 2", "", "st", "con",
    "list 60", "print L0H0.q /values", "where", "keep", "undo", "undo", "st", "con", "redo", "sat on", "history",
    "alias", "show", "> kept.txt", "!!", "run A dog", "model tiny", "run The dog", "model tiny-encoder", "run The dog",
    "use theirs", "score The cat --device cpu", "tokens The --tokenizer tiny", "diff --versus-dtype float64",
    "continue", "", "print L0H0.q", "model tiny", "heads", "! trace['logits'].max()", "> kept.txt",
)  # fmt: skip
"""What the user types then. A line may fail; none starts a program, writes anything but kept.txt or downloads."""


def members() -> set[str]:
    """Every field of the session and of all that it keeps, as CLASS.NAME."""
    session = Session(VERBS, stdout=Capture(), stderr=Capture())
    classes = [cls for module in (state, log) for cls in vars(module).values() if isinstance(cls, type)]
    declared = [
        cls for cls in (*classes, Settings) if cls.__module__.startswith("tinytf_cli.repl.") and cls is not Made
    ]
    objects = (session, session.streams, session.log, session.lexicon, Models())
    return {f"{cls.__name__}.{field.name}" for cls in declared if is_dataclass(cls) for field in fields(cls)} | {
        f"{type(kept).__name__}.{name}" for kept in objects for name in vars(kept)
    }


def test_every_field_of_the_session_is_tried() -> None:
    tried = {name for _, names in ATTACKS.values() for name in names.split()}
    assert members() == tried


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub with the model org/name."""
    from tinytf_cli.main import run

    folder = tmp_path_factory.mktemp("hub")
    snapshot = folder / "models--org--name" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    assert run(["export", "tiny", str(snapshot), "--to", "huggingface"]) == 0
    return folder


@pytest.fixture
def acts(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a session does to the world, as it does it: programs, pagers and downloads. Its folder has some files."""
    done: list[str] = []

    def record(kind: str, result: Any = None) -> Callable[..., Any]:
        def act(*arguments: Any, **_: Any) -> Any:
            done.append(f"{kind} {arguments[0]!s:.60}")
            if result is None:
                raise OSError("this test starts nothing")
            return result

        return act

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("subprocess.Popen", record("program"))
    monkeypatch.setattr("tinytf_cli.repl.streams.page", record("pager", ""))
    snapshot = next((hub / "models--org--name" / "snapshots").iterdir())
    monkeypatch.setattr("huggingface_hub.snapshot_download", record("download", str(snapshot)))
    for name in ("code", "inner"):
        Path(name).write_text("! open('owned', 'w')\n", "utf-8")
    return done


@pytest.fixture
def talk() -> Callable[[], Talk]:
    def begin() -> Talk:
        out, err = Capture(terminal=True), Capture()
        return Talk(Session(VERBS, Spec("tiny"), stdout=out, stderr=err), out, err)

    return begin


def stranger(talk: Talk, lines: str) -> None:
    """Run each line as far as it goes, all of them lines of one file."""
    pairs = [("evil line", line) for line in lines.split("\n")]
    for _ in run_each(talk.session, talk.session.streams.of_file(pairs, Trust(allow_code=False, write_to=None))):
        pass


def typed(talk: Talk, *lines: str) -> list[str]:
    """Type lines of the user's own; which of them were done."""
    return [line for line in lines if talk.session.execute(line).status == 0]


@pytest.mark.share(8)
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_file_leaves_acts_no_more_than_the_file_did(
    acts: list[str], talk: Callable[[], Talk], attack: str
) -> None:
    session = talk()
    before = {path.name for path in Path().iterdir()} | {"kept.txt"}
    stranger(session, ATTACKS[attack][0])
    done = typed(session, *OWN)
    assert acts == []
    assert {path.name for path in Path().iterdir()} <= before
    assert {"! 6 * 7", "run A dog", "> kept.txt"} <= set(done)


@pytest.mark.parametrize(
    "attack", [name for name in ATTACKS if "alias" in name or "movement" in name or "Python" in name]
)
def test_a_saved_session_has_no_line_of_a_file_that_acts_where_it_may(
    acts: list[str], talk: Callable[[], Talk], attack: str
) -> None:
    """Its own lines may run code; an alias of a stranger's file is none of them."""
    session = talk()
    stranger(session, ATTACKS[attack][0])
    assert typed(session, "save mine.session --force")
    again = talk()
    before = {path.name for path in Path().iterdir()}
    again("source mine.session --allow-code")
    typed(again, "st", "wh", "con", "The cat sat on the mat", "sat on the mat", "")
    assert [act for act in acts if not act.startswith("download")] == []
    assert {path.name for path in Path().iterdir()} == before


def parts(kept: Any) -> Iterator[Made]:
    """Every part of a state that somebody's line has made."""
    if isinstance(kept, Made):
        yield kept
    if is_dataclass(kept):
        for field in fields(kept):
            yield from parts(getattr(kept, field.name))
    elif isinstance(kept, tuple | list):
        for one in kept:
            yield from parts(one)
    elif isinstance(kept, dict):
        yield from parts(list(kept.values()))


def test_what_a_line_of_a_file_makes_has_its_fence_and_what_the_user_makes_has_none(
    acts: list[str], talk: Callable[[], Talk]
) -> None:
    made = f"model tiny-encoder\n{RUN}keep one\nbreak L0.q\ndisplay L0H0.q\nalias pw print L0H0.q\nstep"
    session = talk()
    stranger(session, made)
    theirs = [*parts(session.session.state), session.session._last_movement]
    assert {type(part) for part in theirs} == {Spec, Run, Stop, Display, Alias, Movement}
    assert all(part.fence is not None for part in theirs)
    own = talk()
    own(*made.split("\n"))
    assert all(part.fence is None for part in [*parts(own.session.state), own.session._last_movement])


def test_a_model_that_the_user_names_is_the_users(talk: Callable[[], Talk], acts: list[str]) -> None:
    session = talk()
    stranger(session, "model tiny-encoder\nwithout L0H0")
    session("without none")
    assert session.session.state.spec.fence is not None
    session("model tiny-encoder")
    session("model hub:org/name")
    assert session.session.state.spec.fence is None
    assert acts[0].startswith("download")


def test_a_file_uses_its_aliases_and_leaves_the_users_as_they_were(talk: Callable[[], Talk], acts: list[str]) -> None:
    session = talk()
    session(RUN, "alias pw print L0H0.q")
    Path("file").write_text("alias pw top 1\npw\nalias hot heat L0H0\nhot\nunalias pw\npw /shape", "utf-8")
    shown = session("source file")
    for line in ("top 1", "heat L0H0", "print L0H0.q /shape"):
        assert session(line).splitlines()[-1] in shown
    assert session.session.aliases == {"pw": "print L0H0.q"}
    assert "there is no verb or command 'hot'" in str(session.fails("hot").failure)
    Path("trusted").write_text("alias hot heat L0H0", "utf-8")
    session("source trusted --allow-code")
    assert session.session.aliases == {"pw": "print L0H0.q", "hot": "heat L0H0"}


@pytest.mark.parametrize(
    ("moved", "repeated"),
    [
        ("step", "step"), ("step 2 | cat", "step 2"), ("step -o place.json", "step"), ("s --json > x.txt", "step"),
        ("next > place.txt", "next"), ("fin", "finish"), ("step # on", "step"), ("step 2\nback -o x.txt", "back"),
    ],
)  # fmt: skip
def test_enter_repeats_a_movement_and_not_where_its_output_went(
    talk: Callable[[], Talk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str, repeated: str
) -> None:
    monkeypatch.chdir(tmp_path)
    session = talk()
    session("run The cat", *moved.split("\n"))
    for path in tmp_path.iterdir():
        path.unlink()
    shown = session("")
    assert session.session.log.lines[-1].line == repeated
    assert session.session.step_words.split()[0] in shown
    assert list(tmp_path.iterdir()) == []


def test_a_pager_that_the_user_chooses_is_started(talk: Callable[[], Talk], acts: list[str]) -> None:
    session = talk()
    stranger(session, "set pager on")
    session(RUN, "list 90")
    assert acts == []
    session("set pager off", "set pager on", "set dims 3", "list 90")
    assert [act.split()[0] for act in acts] == ["pager"]


def test_the_model_of_the_hub_that_a_file_opens_is_the_one_on_the_disk(
    talk: Callable[[], Talk], acts: list[str]
) -> None:
    session = talk()
    stranger(session, f"model hub:org/name\n{RUN}")
    assert acts == []
    assert session.session.state.spec.name == "hub:org/name"
    expected = load("tiny").trace("The cat sat")["logits"]
    assert session.session.trace["logits"].equal(expected)
    session("score The cat --device cpu", "info")
    assert acts == []
