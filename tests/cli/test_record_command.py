"""tinytf record and what reads its folder; many lines: streams, processes, and going on after an end."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from driving import SENTENCE, Tinytf, is_a_clean_error

from tinytf.bulk.folder import recorded
from tinytf_cli import many

LINES = [f"The {animal} sat on the {place} and saw the big red dog." for animal in ("cat", "dog", "mat", "big cat")
         for place in ("mat", "dog", "cat", "red mat", "big red cat", "red dog", "mat the cat ran from", "big dog",
                       "cat that ran away", "dog the cat saw")]  # fmt: skip


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n\n", "utf-8")
    return path


def in_two_processes(*arguments: str | Path) -> bytes:
    """What two processes write to standard output, started as torchrun starts them, which itself takes seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    line = [sys.executable, "-m", "tinytf", *map(str, arguments)]
    both = [
        subprocess.Popen(line, stdout=subprocess.PIPE, env={**environ, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    written = b"".join(process.communicate(timeout=300)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    return written


def test_a_recording_says_what_it_holds_and_is_not_made_twice(
    tinytf: Tinytf, decoder: Path, lines: Path, tmp_path: Path
) -> None:
    given = ("record", lines, "--document", "line", "--at", "L*.out", "--at", "L1H0.q", "-m", decoder)
    ran = tinytf(*given, "--out", tmp_path / "acts", "--width", "300")
    corpus = recorded(tmp_path / "acts")
    assert ran.lines[0].startswith(f"{tmp_path / 'acts'} holds L0.out, L1.out, L1H0.q at {len(corpus):,} tokens of 40")
    assert re.search(r"L1H0\.q +d_head +8 ", ran.out)
    assert f"about {len(corpus):,} tokens and" in ran.err
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "acts").iterdir()}
    again = json.loads(tinytf(*given, "--out", tmp_path / "acts", "--json").out)
    assert (again["kind"], again["complete"], again["resumed"]) == ("record", True, len(corpus))
    assert [step["shape"] for step in again["steps"]] == [[16], [16], [8]]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "acts").iterdir()} == before
    refused = tinytf(*given, "--out", tmp_path / "acts", "--last")
    assert is_a_clean_error(refused)
    assert "at other tokens: every token, not last token" in refused.err


def test_tables_and_pipes_are_recorded(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    rows = [{"id": str(number), "text": line} for number, line in enumerate(LINES)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    given = ("--at", "L1.out", "-m", decoder, "--last", "--save-as", "float16")
    unclear = tinytf("record", tmp_path / "rows.jsonl", *given, "--out", tmp_path / "a")
    assert is_a_clean_error(unclear)
    assert "several text fields: id, text" in unclear.err
    missing = tinytf("record", tmp_path / "rows.jsonl", *given, "--field", "body", "--out", tmp_path / "a")
    assert is_a_clean_error(missing)
    assert "the field body of" in missing.err
    assert tinytf("record", tmp_path / "rows.jsonl", *given, "--field", "text", "--out", tmp_path / "a").status == 0
    assert recorded(tmp_path / "a").at("L1.out").shape == (len(LINES), 16)
    piped = tinytf(
        "record", "-", *given, "--document", "line", "--out", tmp_path / "b", stdin="\n".join(LINES).encode()
    )  # fmt: skip
    assert piped.status == 0, piped.err
    same = (recorded(tmp_path / name).at("L1.out")[:] for name in "ab")
    assert torch.equal(*same)


def test_neurons_reads_a_recording_instead_of_the_corpus(
    tinytf: Tinytf, decoder: Path, llama: Path, lines: Path, tmp_path: Path
) -> None:
    acts = tmp_path / "acts"
    tinytf("record", lines, "--at", "L1.ffn.act", "-m", decoder, "--out", acts)
    given = ("neurons", SENTENCE, "--unit", "L1.7", "--json", "-m")
    from_folder, from_corpus = (
        json.loads(tinytf(*given, decoder, "--top-examples", place).out)["examples"]["units"] for place in (acts, lines)
    )
    assert [[e["document"], e["position"], e["tokens"]] for e in from_folder[0]["examples"]] == [
        [e["document"], e["position"], e["tokens"]] for e in from_corpus[0]["examples"]
    ]
    other = tinytf(*given, llama, "--top-examples", acts)
    assert is_a_clean_error(other)
    assert "was recorded with other weights" in other.err


@pytest.mark.slow
def test_lens_features_sae_and_probe_read_a_recording(
    tinytf: Tinytf, decoder: Path, llama: Path, lines: Path, tmp_path: Path
) -> None:
    (tmp_path / "labels.jsonl").write_text(
        "".join(json.dumps({"text": line, "label": "cat" in line}) + "\n" for line in LINES), "utf-8"
    )
    acts, texts, out = (tmp_path / name for name in ("acts", "texts", "out"))
    tinytf("record", lines, "--document", "line", "--at", "L*.out", "--at", "embed.out", "-m", decoder, "--out", acts)
    tinytf("record", tmp_path / "labels.jsonl", "--field", "text", "--at", "L*.out", "-m", decoder, "--out", texts)
    sizes = ("--at", "L0.out", "--features", "24", "--k", "3", "--tokens", "400", "--batch", "40")
    made = tinytf("train-sae", acts, *sizes, "--out", out, "-m", decoder, "--json")
    assert made.status == 0, made.err
    assert json.loads((out / "cfg.json").read_text("utf-8"))["metadata"]["context_size"] == 64
    for given in (
        ("lens", "--train", acts, "--steps", "1"),
        ("train-sae", acts, *sizes, "--out", tmp_path / "other"),
        ("features", SENTENCE, "--sae", out, "--feature", "1", "--top-examples", acts),
        ("probe", "--labels", tmp_path / "labels.jsonl", "--from", texts),
    ):
        other, ran = (tinytf(*given, "--json", "-m", model) for model in (llama, decoder))
        assert ran.status == 0, ran.err
        assert is_a_clean_error(other)
        reason = "belongs to another model" if given[0] == "features" else "was recorded with other weights"
        assert reason in other.err
    ran, read = (
        json.loads(tinytf("probe", "--labels", tmp_path / "labels.jsonl", "--json", "-m", decoder, *more).out)["steps"]
        for more in ((), ("--from", texts))
    )
    assert [step["accuracy"] for step in read] == [step["accuracy"] for step in ran]
    for refused, why in (
        (("train-sae", acts, *sizes[2:], "--at", "L0.ffn", "--out", tmp_path / "ffn"), "has no L0.ffn"),
        (("train-sae", acts, *sizes, "--window", "32", "--out", tmp_path / "cut"), "in windows of its own"),
        (("probe", "--labels", tmp_path / "labels.jsonl", "--from", lines.parent), "is not a recorded corpus"),
    ):
        failed = tinytf(*refused, "-m", decoder)
        assert is_a_clean_error(failed)
        assert why in failed.err


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_write_what_one_writes_byte_for_byte(
    tinytf: Tinytf, decoder: Path, lines: Path, tmp_path: Path
) -> None:
    given = ("score", "--lines", lines, "-m", decoder, "--format", "ndjson")
    assert in_two_processes(*given) == tinytf(*given).data
    given = ("record", lines, "--document", "line", "--at", "L1.out", "-m", decoder, "--shard-size", "0.01", "--out")
    assert in_two_processes(*given, tmp_path / "two").count(b" holds L1.out at ") == 1
    tinytf(*given, tmp_path / "one")
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert len(one) > 4
    assert one == two


@pytest.mark.share(4)
@pytest.mark.parametrize("command", [("score",), ("lens",), ("attribute",), ("ablate", "--at", "L0H1")])
def test_the_lines_of_a_file_are_those_of_a_pipe(
    tinytf: Tinytf, decoder: Path, lines: Path, command: tuple[str, ...]
) -> None:
    given = (*command, "-m", decoder, "--lines", "--format", "ndjson")
    ran = tinytf(*given, lines)
    assert ran.data == tinytf(*given, stdin=lines.read_bytes()).data
    assert {json.loads(line)["result"] for line in ran.lines} == set(range(len(LINES)))
    file = lines.with_suffix(".ndjson")
    assert tinytf(*given, lines, "-o", file).status == 0
    assert file.read_bytes() == ran.data


def test_results_are_continued_from_wherever_they_ended(
    tinytf: Tinytf, decoder: Path, lines: Path, tmp_path: Path
) -> None:
    path, given = tmp_path / "results.ndjson", ("score", "-m", decoder, "--lines", lines)
    ran = tinytf(*given, "--resume", path)
    assert (ran.out, ran.err) == ("", f"tinytf: wrote 40 results to {path}\n")
    data = path.read_bytes()
    assert data.split(b"\n", 1)[1] == tinytf(*given, "--format", "ndjson").data
    for size in (0, 60, len(data) // 3, len(data) // 2 + 17, len(data) - 1, len(data)):
        path.write_bytes(data[:size] if size > 60 else b"")
        assert tinytf(*given, "--resume", path).status == 0
        assert path.read_bytes() == data
    for wrong in (
        ("score", "-m", decoder, "--lines", lines, "--limit", "100"),
        ("lens", "-m", decoder, "--lines", lines),
        ("score", "-m", decoder, "--lines", "The cat\nThe dog"),
    ):
        refused = tinytf(*wrong, "--resume", path)
        assert is_a_clean_error(refused)
        assert "another model, of other texts or options" in refused.err
    (tmp_path / "mine.txt").write_text("mine\n", "utf-8")
    assert is_a_clean_error(tinytf(*given, "--resume", tmp_path / "mine.txt"))
    assert (tmp_path / "mine.txt").read_text("utf-8") == "mine\n"


@pytest.mark.parametrize(
    "wrong", [("score", SENTENCE), ("lens", SENTENCE), ("generate", SENTENCE), ("neighbours", "cat"),
              ("score", "--lines", "a cat\na dog", "--format", "ndjson")],
)  # fmt: skip
def test_resume_is_refused_where_nothing_resumes(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, wrong: tuple[str, ...]
) -> None:
    ran = tinytf(*wrong, "-m", decoder, "--resume", tmp_path / "results.ndjson")
    assert is_a_clean_error(ran)
    assert "--resume" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_text_that_cannot_be_answered_is_named_after_the_answers_before_it(
    tinytf: Tinytf, decoder: Path, lines: Path
) -> None:
    texts = [*LINES[:5], "cat " * 200, *LINES[5:]]
    lines.write_text("\n".join(texts), "utf-8")
    ran = tinytf("lens", "-m", decoder, "--lines", lines, "--format", "ndjson")
    assert ran.status == 2
    assert "tinytf: error: text 6: the text has 201 tokens, and decoder takes at most 64" in ran.err
    assert {json.loads(line)["result"] for line in ran.lines} == set(range(5))
    lines.write_text("\n".join([*LINES[:5], "e", *LINES[5:]]), "utf-8")
    ran = tinytf("score", "-m", decoder, "--lines", lines, "--format", "ndjson")  # which answers many at a time
    assert "tinytf: error: text 6: 1 token is too few" in ran.err
    assert {json.loads(line)["result"] for line in ran.lines} == set(range(5))


def test_texts_are_read_a_chunk_at_a_time() -> None:
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for line in LINES * 5:
            read += 1
            yield line

    ahead = []
    reports = many._Reports(
        texts(),
        lambda chunk: (SimpleNamespace(holds=True, interrupted=False) for _ in chunk),
        0,
        lambda done: ahead.append(read - done),
    )  # type: ignore[arg-type]
    assert len(list(reports.alone())) == read == len(LINES) * 5
    assert max(ahead) < many.CHUNK
