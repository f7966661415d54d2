"""On a disk that fails, what is written names its file, and leaves what was there before."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from covering import sample
from driving import SENTENCE, Ran, Stream, Tinytf, is_a_clean_error, streams
from failing_disk import BROKEN, FULL, TORN, Disk, Fault, failing
from training_runs import CAUSAL, STORY, changed

from tinytf.training.train import train
from tinytf_cli.failing import say
from tinytf_cli.main import run
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture

KINDS = [FULL, BROKEN, TORN]
FORMS = ("json", "ndjson", "csv", "txt", "html", "svg", "safetensors")
OUTPUTS = [
    *(("trace", f"out.{form}", FULL) for form in FORMS),
    *(("grad", "out.json", kind) for kind in KINDS),
]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def every_fault(folder: Path, kind: Fault, write: Callable[[], Ran], named: str) -> int:
    """Write once for each fault, until a disk has none; how many there were. Each leaves the folder as it was."""
    before, entries = contents(folder), sorted(folder.rglob("*"))
    for number in itertools.count(1):
        with failing(Disk(folder, number, kind)) as disk:
            ran = write()
        if not disk.failed:
            assert ran.status == 0
            return number - 1
        assert is_a_clean_error(ran, 1 if disk.failed != "mkdir" else 2)
        assert named in ran.err
        assert ("make room" in ran.err) == (kind != BROKEN)
        assert contents(folder) == before
        assert sorted(folder.rglob("*")) == entries
    raise AssertionError


@sample(("command", "name", "kind"), OUTPUTS, every=2, ids=str)
def test_an_output_file_appears_whole_or_not_at_all(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, command: str, name: str, kind: Fault
) -> None:
    path = tmp_path / name
    path.write_text("what stood before", "utf-8")
    ran = every_fault(tmp_path, kind, lambda: tinytf(command, SENTENCE, "-m", decoder, "-o", path), f"write {path}: ")
    assert ran >= (1 if kind == TORN else 4)
    assert path.read_bytes() != b"what stood before"


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("place", ["out", "new/folder/out"])
def test_an_export_leaves_no_half_of_a_model(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, place: str, kind: Fault
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    if place == "out":
        (folder / place).mkdir()

    def write() -> Ran:
        return tinytf("export", decoder, folder / place, "--to", "huggingface")

    assert every_fault(folder, kind, write, f"cannot write {folder}") >= (4 if kind == TORN else 16)
    assert {path.name for path in (folder / place).iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


@sample("name", ["film.cast", "film.svg", "film.json"], every=2)
@pytest.mark.slow
def test_a_film_appears_whole_or_not_at_all(tinytf: Tinytf, tmp_path: Path, name: str) -> None:
    train(STORY, changed(CAUSAL, steps=2, probe_every=1), tmp_path / "run")
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / name
    assert (
        every_fault(path.parent, FULL, lambda: tinytf("runs", "--film", tmp_path / "run", "-o", path), str(path)) >= 4
    )


@pytest.mark.parametrize("line", ["save", "run The cat >", "tokens The -o"])
def test_what_a_session_writes_appears_whole_or_not_at_all(line: str, decoder: Path, tmp_path: Path) -> None:
    path, session = tmp_path / "saved.txt", Session(VERBS, Spec(str(decoder)), stdout=Capture(), stderr=Capture())

    def write() -> Ran:
        outcome, said = session.execute(f"{line} {path}"), Stream()
        if outcome.failure is not None:
            say(outcome.failure.message, outcome.failure.hint, stream=said)
        return Ran(outcome.status, b"", said.got().decode())

    assert every_fault(tmp_path, FULL, write, str(path)) >= 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_standard_output_is_named(decoder: Path) -> None:
    err = Stream()
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115, closing it fails, as it should
    with streams(stdout=full, stderr=err):
        status = run(["tokens", SENTENCE, "-m", str(decoder)])
    with pytest.raises(OSError, match="No space left"):
        full.close()
    assert status == 1
    assert err.got() == b"tinytf: error: cannot write standard output: No space left on device\nhint: make room\n"
