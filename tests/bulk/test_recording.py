"""A recorded corpus holds what the model computes, whatever interrupted it, and is read without being loaded."""

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import tinytf
from tinytf.bulk.folder import recorded
from tinytf.bulk.passes import Passes
from tinytf.bulk.record import Plan
from tinytf.bulk.windows import Window, corpus_windows, recorded_windows
from tinytf.checkpoints.huggingface.export import export
from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, TinytfError, UsageError
from tinytf.loading import Model
from tinytf.model.transformer import Transformer
from tinytf.text.corpus import Corpus, Reading, find_files

WORDS = ("the", "cat", "dog", "hen", "fox", "sat", "ran", "saw", "and", "with", "a", "big", "red", "house", "day",
         "little", "went", "home", "happy", "tree")  # fmt: skip
LINES = [f"The {' '.join(WORDS[(n * k) % len(WORDS)] for k in range(2, 4 + n % 17))}." for n in range(1, 91)]
SAE = Path(__file__).parents[2] / "samples" / "sae"
AT = ("L*.out", "L1.head_out", "L0H1.k", "L0.norm1", "embed.tokens")


@pytest.fixture(scope="module")
def model() -> Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    path = tmp_path_factory.mktemp("corpus") / "lines.txt"
    path.write_text("\n".join(LINES), "utf-8")
    return find_files([path], Reading("line"))


def own_rows(model: Model, at: str, texts: list[str]) -> Tensor:
    """What ``Model.traces`` has at an address for the tokens of some texts, without the added ones."""
    rows = []
    for trace in model.traces(texts):
        tensor = trace[at].transpose(0, 1) if at == "L1.head_out" else trace[at]
        rows.append(tensor[[not (token.special and token.start == token.end) for token in trace.tokens]])
    return torch.cat(rows)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["tiny", "tiny-encoder"])
def test_the_rows_are_those_of_traces_to_the_last_bit(name: str, lines: Corpus, tmp_path: Path) -> None:
    model = tinytf.load(name)
    at = tuple(a if name == "tiny" else a.replace("L*.out", "L*.norm2") for a in AT)
    report = model.record(lines, at, tmp_path / "acts")
    corpus = recorded(tmp_path / "acts")
    assert (report.complete, report.documents, report.tokens) == (True, len(LINES), len(corpus))
    for address, step in corpus.steps.items():
        parts = [own_rows(model, address, LINES[first : first + 64]) for first in (0, 64)]  # as they go in batches
        assert torch.equal(step[:], torch.cat(parts)), address
    ids = [model.tokenizer.encode(line, special=False).ids for line in LINES]
    assert corpus.tokens[:].tolist() == [token_id for line in ids for token_id in line]
    assert corpus.documents[:].tolist() == [number for number, line in enumerate(ids) for _ in line]
    assert corpus.positions[:].tolist() == [position for line in ids for position in range(len(line))]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrow_type_holds_the_same_numbers_rounded(
    dtype: str, model: Model, lines: Corpus, tmp_path: Path
) -> None:  # fmt: skip
    model.record(lines, ["L2.out"], tmp_path / "wide")
    model.record(lines, ["L2.out"], tmp_path / "narrow", dtype=dtype)
    wide, narrow = recorded(tmp_path / "wide").at("L2.out")[:], recorded(tmp_path / "narrow").at("L2.out")[:]
    assert torch.equal(narrow, wide.to(getattr(torch, dtype)))


@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_the_rows_are_the_hidden_states_of_transformers(preset: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    shape, tiny = tinytf.load(f"preset:{preset}"), tinytf.load("tiny")
    model = Model(preset, shape.transformer, tiny.tokenizer, "") if shape.config.vocab_size >= 2048 else shape
    export(model.transformer, model.tokenizer, tmp_path / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    (tmp_path / "lines.txt").write_text("\n".join(LINES[:20]), "utf-8")
    model.record(find_files([tmp_path / "lines.txt"], Reading("line")), ["L*.out"], tmp_path / "acts")
    corpus, last = recorded(tmp_path / "acts"), model.config.n_layers - 1
    for number, line in enumerate(LINES[:20]):
        encoding = model.encode(line)
        own = [not (token.special and token.start == token.end) for token in encoding.tokens]
        with torch.no_grad():
            hidden = theirs(torch.tensor([encoding.ids]), output_hidden_states=True).hidden_states
        rows = corpus.documents[:] == number
        for layer in range(last):  # the last of theirs is behind the final norm
            ours = corpus.at(f"L{layer}.out")[rows]
            torch.testing.assert_close(ours, hidden[layer + 1][0][own], atol=2e-5, rtol=1e-5)


class Stopped(BaseException):
    """A kill, as Python can have it: nothing is written behind it."""


@pytest.mark.parametrize("kind", [Stopped, KeyboardInterrupt])
def test_a_recording_that_ends_anywhere_continues_to_the_same_bytes(
    kind: type[BaseException], model: Model, lines: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"shard_size": 0.4, "window": 4}
    model.record(lines, ["L1.out", "L0H2.q"], tmp_path / "whole", **settings)
    whole = files_of(tmp_path / "whole")
    assert len(whole) == 3  # two shards of several groups, and the index
    genuine = Passes.__call__
    for calls in range(1, 5):
        remaining = iter([*[None] * calls, kind])

        def ending(passes: Passes, windows: list[Window], remaining: Iterator[object] = remaining) -> dict[str, Tensor]:
            if next(remaining, None) is kind:
                raise kind
            return genuine(passes, windows)

        folder = tmp_path / f"{calls}"
        with monkeypatch.context() as patched:
            patched.setattr(Passes, "__call__", ending)
            try:
                report = model.record(lines, ["L1.out", "L0H2.q"], folder, **settings)
                assert report.interrupted
                assert len(recorded(folder)) == report.tokens > 0
            except Stopped:
                pass
        continued = model.record(lines, ["L1.out", "L0H2.q"], folder, **settings)
        assert continued.complete
        assert files_of(folder) == whole
        assert continued.resumed > 0 or kind is Stopped


def test_a_recording_that_ends_at_once_says_that_it_holds_nothing(
    model: Model, lines: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Passes, "__call__", stop)
    report = model.record(lines, ["L1.out"], tmp_path / "acts")
    assert report.interrupted
    assert report.sentence == f"{tmp_path / 'acts'} holds nothing yet; the same command begins again."
    report.show()
    assert "open it with" not in capsys.readouterr().out
    with pytest.raises(UsageError, match="has no finished shard yet"):
        recorded(tmp_path / "acts")


def test_another_recording_is_refused_by_what_differs(model: Model, lines: Corpus, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("The dog ran home.\n", "utf-8")
    other = find_files([tmp_path / "other.txt"], Reading("line"))
    model.record(lines, ["L1.out"], tmp_path / "acts", limit=50)
    before = files_of(tmp_path / "acts")
    for said, begin in {
        "with another model": lambda: tinytf.load("tiny", dtype="float64").record(
            lines, ["L1.out"], tmp_path / "acts", limit=50
        ),
        "from another corpus": lambda: model.record(other, ["L1.out"], tmp_path / "acts", limit=50),
        "at other addresses: L1.out, not L2.out": lambda: model.record(lines, ["L2.out"], tmp_path / "acts", limit=50),
        "as another type: float32, not float16": lambda: model.record(
            lines, ["L1.out"], tmp_path / "acts", limit=50, dtype="float16"
        ),
        "at other tokens": lambda: model.record(lines, ["L1.out"], tmp_path / "acts", limit=50, every_token=False),
        "with another limit: 50, not None": lambda: model.record(lines, ["L1.out"], tmp_path / "acts"),
    }.items():
        with pytest.raises(UsageError, match=said):
            begin()
    assert files_of(tmp_path / "acts") == before
    with pytest.raises(UsageError, match=r"at other addresses: L1\.out, not L0H0\.q, L0H1\.q.*…$"):
        model.record(lines, ["L*H*.q"], tmp_path / "acts", limit=50)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="is not an empty folder"):
        model.record(lines, ["L1.out"], tmp_path / "mine")


@pytest.mark.parametrize(
    ("at", "said"),
    [("L0.weights", "has not one row for each token"), ("logits", "each token of the vocabulary"),
     ("L1", "names no step"), ("L1.out[2]", "names a cell"), ("L9.out", "there is no layer 9"), ("ids", "no tensor")],
)  # fmt: skip
def test_what_has_no_row_for_each_token_is_refused(
    at: str, said: str, model: Model, lines: Corpus, tmp_path: Path
) -> None:  # fmt: skip
    with pytest.raises(UsageError, match=said):
        model.record(lines, [at], tmp_path / "acts")
    assert not (tmp_path / "acts").exists()


def test_a_window_without_room_is_refused_before_a_folder_is_made(lines: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a window of 2 tokens has no room for a token of the text"):
        tinytf.load("tiny-encoder").record(lines, ["L0.mid"], tmp_path / "acts", window=2)
    assert not (tmp_path / "acts").exists()


def test_numbers_that_a_type_cannot_hold_are_refused_by_name(lines: Corpus, tmp_path: Path) -> None:
    model = tinytf.load("tiny")
    with torch.no_grad():
        model.transformer.embed.tokens.weight[:, 3] = 7e4  # times √128, as tiny scales embeddings
    with pytest.raises(TinytfError, match=r"L0\.in has a number of size 791,960, and float16 holds at most 65,504"):
        model.record(lines, ["L0.in"], tmp_path / "acts", dtype="float16")
    with torch.no_grad():
        model.transformer.embed.tokens.weight[:, 3] = float("nan")
    with pytest.raises(TinytfError, match=r"L0\.in is not finite at token 0 of document"):
        model.record(lines, ["L0.in"], tmp_path / "nan")


def test_the_last_token_and_the_limit_choose_rows(model: Model, lines: Corpus, tmp_path: Path) -> None:
    model.record(lines, ["L1.out"], tmp_path / "all", window=5)
    model.record(lines, ["L1.out"], tmp_path / "last", window=5, every_token=False)
    model.record(lines, ["L1.out"], tmp_path / "some", window=5, limit=33)
    whole, last, some = (recorded(tmp_path / name) for name in ("all", "last", "some"))
    ends = [*(whole.documents[1:] != whole.documents[:-1]).nonzero()[:, 0].tolist(), len(whole) - 1]
    assert torch.equal(last.tokens[:], whole.tokens[ends])
    torch.testing.assert_close(last.at("L1.out")[:], whole.at("L1.out")[ends], atol=1e-4, rtol=1e-4)
    assert torch.equal(some.tokens[:], whole.tokens[:33])
    torch.testing.assert_close(some.at("L1.out")[:], whole.at("L1.out")[:33], atol=1e-4, rtol=1e-4)


def test_no_more_than_a_shard_of_the_corpus_is_in_memory(
    model: Model, lines: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, genuine, ahead = 0, Plan.windows, list[int]()

    def counted(plan: Plan) -> Iterator[Window]:
        nonlocal read
        for window in genuine(plan):
            read += len(window.own)
            yield window

    monkeypatch.setattr(Plan, "windows", counted)
    model.record(
        lines, ["L1.out"], tmp_path / "acts", shard_size=0.1, on_progress=lambda done, of: ahead.append(read - done)
    )
    assert len(ahead) > 5
    assert max(ahead) == 0


def test_a_disk_that_is_too_small_is_refused_before_anything_runs(
    model: Model, lines: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    said: list[tuple[int, int]] = []
    with pytest.raises(UsageError, match=r"takes about .* more, and 1000 B are free"):
        model.record(lines, ["L1.out"], tmp_path / "a", on_estimate=lambda rows, size: said.append((rows, size)))
    report = model.record(lines, ["L1.out"], tmp_path / "a", force=True)
    assert said == [(report.tokens, report.bytes)]  # a corpus that is shorter than the sample is counted


def test_a_recording_is_read_by_slices_indices_and_batches(model: Model, lines: Corpus, tmp_path: Path) -> None:
    model.record(lines, ["L1.out", "L0.q"], tmp_path / "acts", shard_size=0.5)
    corpus = recorded(tmp_path / "acts")
    step = corpus.at("L0.q")
    shards = [load_file(shard.path) for shard in corpus.shards]  # the plain library
    whole = torch.cat([shard["L0.q"] for shard in shards])
    assert len(shards) == 3
    assert step.shape == tuple(whole.shape) == (len(corpus), 4, 32)
    n = len(corpus)
    for at in (slice(3, n - 2), slice(0, 0), slice(None, None, 7), [5, n - 1, 0, 5], torch.tensor([n // 2, -1]), 9, -2):
        assert torch.equal(step[at], whole[at]), at
    assert np.array_equal(np.asarray(step), whole.numpy())
    batches = list(corpus.batches("L0.q", 100))
    assert torch.equal(torch.cat(batches), whole.flatten(1))
    assert {len(batch) for batch in batches[:-1]} == {100}
    with pytest.raises(IndexError):
        step[n]
    with pytest.raises(UsageError, match=r"has no L0\.k"):
        corpus.at("L0.k")
    corpus.shards[1].path.unlink()
    with pytest.raises(UsageError, match="lacks shard-00001"):
        recorded(tmp_path / "acts")
    corpus.shards[1].path.write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="shard-00001"):
        recorded(tmp_path / "acts").at("L0.q")[:]
    index = json.loads((tmp_path / "acts" / "index.json").read_text("utf-8"))
    (tmp_path / "acts" / "index.json").write_text(json.dumps({**index, "shards": [{"file": 1}]}), "utf-8")
    with pytest.raises(CheckpointError, match="has to be a string"):
        recorded(tmp_path / "acts")


def test_the_top_examples_of_a_recording_are_those_of_the_corpus(model: Model, lines: Corpus, tmp_path: Path) -> None:
    model.record(lines, ["L1.ffn.act", "L3.ffn.act"], tmp_path / "acts", shard_size=0.5)
    units = ["L3.17", "L1.5", "L1.200"]
    from_corpus = model.top_examples(lines, units, top=4)
    from_folder = model.top_examples(recorded(tmp_path / "acts"), units, top=4)
    assert (from_folder.tokens, from_folder.documents) == (from_corpus.tokens, from_corpus.documents)
    for unit, examples in from_corpus.units.items():
        for one, other in zip(examples, from_folder.units[unit], strict=True):
            assert (one.document, one.position, one.ids, one.at) == (
                other.document,
                other.position,
                other.ids,
                other.at,
            )
            assert other.activation == pytest.approx(one.activation, abs=1e-5)
    other_model = tinytf.load("preset:llama-tiny")
    with pytest.raises(UsageError, match="was recorded with other weights"):
        recorded(tmp_path / "acts").require_model(other_model.transformer, other_model.name)
    with pytest.raises(UsageError, match=r"has no L2\.ffn\.act"):
        model.top_examples(recorded(tmp_path / "acts"), ["L2.1"])


def test_a_lens_learns_the_same_from_a_recording(model: Model, tmp_path: Path) -> None:
    assert model.corpus is not None
    model.record(find_files([model.corpus], Reading("file")), ["L*.out"], tmp_path / "acts", window=128)
    from_corpus = model.train_lens(steps=3)
    from_folder = model.train_lens(recorded(tmp_path / "acts"), steps=3)
    assert (from_folder.training, from_folder.window) == (from_corpus.training, from_corpus.window)
    assert from_folder.corpus == str(tmp_path / "acts")
    for ours, theirs in zip(from_folder.stages, from_corpus.stages, strict=True):
        for name in ("logit", "tuned", "less"):
            assert getattr(ours, name).value == pytest.approx(getattr(theirs, name).value, abs=1e-4), ours.stage
    for name in ("weights", "biases"):
        for ours, theirs in zip(*(getattr(r.translators, name) for r in (from_folder, from_corpus)), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_a_lens_needs_recorded_embeddings_where_they_depend_on_positions(lines: Corpus, tmp_path: Path) -> None:
    shape, tiny = tinytf.load("preset:gpt2-tiny"), tinytf.load("tiny")
    model = Model("gpt2-tiny", shape.transformer, tiny.tokenizer, "")
    model.record(lines, ["L*.out"], tmp_path / "outputs")
    with pytest.raises(UsageError, match=r"has no embed\.out"):
        model.train_lens(recorded(tmp_path / "outputs"))
    model.record(lines, ["embed.out", "L*.out"], tmp_path / "all")
    assert model.train_lens(recorded(tmp_path / "all"), steps=0, window=16).training > 20


def test_an_autoencoder_learns_the_same_from_a_recording(model: Model, lines: Corpus, tmp_path: Path) -> None:
    model.record(lines, ["L1.out"], tmp_path / "acts", window=128, shard_size=0.1)
    sizes: dict[str, int] = {"features": 48, "k": 4, "tokens": 1200, "batch": 100}
    from_corpus = model.train_sae(lines, "L1.out", **sizes)
    from_folder = model.train_sae(recorded(tmp_path / "acts"), "L1.out", **sizes)
    assert (from_folder.tokens, from_folder.passes) == (from_corpus.tokens, from_corpus.passes)
    torch.testing.assert_close(from_folder.coder.encoder, from_corpus.coder.encoder, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(from_folder.coder.decoder, from_corpus.coder.decoder, atol=1e-3, rtol=1e-3)
    ours, theirs = from_folder.held_out, from_corpus.held_out
    assert ours.tokens == theirs.tokens
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert ours.explained_variance == pytest.approx(theirs.explained_variance, rel=1e-3)


def test_features_are_strongest_where_the_corpus_says(model: Model, lines: Corpus, tmp_path: Path) -> None:
    model.record(lines, ["L2.out"], tmp_path / "acts", shard_size=0.5)
    features = [19, 83, 224]  # whose strongest places differ by more than rounding
    from_corpus = model.feature_examples(lines, SAE, features, top=4)
    from_folder = model.feature_examples(recorded(tmp_path / "acts"), SAE, features, top=4)
    assert (from_folder.tokens, from_folder.documents) == (from_corpus.tokens, from_corpus.documents)
    assert any(example.activation > 0 for examples in from_corpus.units.values() for example in examples)
    for name, examples in from_corpus.units.items():
        for ours, theirs in zip(from_folder.units[name], examples, strict=True):
            assert ours.activation == pytest.approx(theirs.activation, abs=1e-4)
            assert (ours.document, ours.position, ours.ids, ours.at) == (
                theirs.document, theirs.position, theirs.ids, theirs.at,
            )  # fmt: skip
    other = tinytf.load("tiny")
    with torch.no_grad():
        other.transformer.embed.tokens.weight[0, 0] += 1
    with pytest.raises(UsageError, match="was recorded with other weights"):
        other.feature_examples(recorded(tmp_path / "acts"), SAE, features)
    with pytest.raises(UsageError, match="in windows of its own"):
        model.feature_examples(recorded(tmp_path / "acts"), SAE, features, window=64)
    with pytest.raises(UsageError, match=r"has no L1\.out"):
        model.feature_examples(recorded(tmp_path / "acts"), SAE, features, at="L1.out")


@pytest.mark.parametrize("name", ["tiny", "tiny-encoder"])
def test_the_windows_of_a_recording_are_those_that_were_run(name: str, lines: Corpus, tmp_path: Path) -> None:
    model = tinytf.load(name)
    model.record(lines, ["L0.norm1"], tmp_path / "acts", window=9, shard_size=0.05)
    ran = corpus_windows(model, lines.documents(), 9)
    read = recorded_windows(recorded(tmp_path / "acts"), model.tokenizer, 0)
    for ours, theirs in zip(read, ran, strict=True):
        assert replace(ours, ends=theirs.ends) == theirs


def test_what_a_recording_lacks_is_refused_before_any_training(model: Model, lines: Corpus, tmp_path: Path) -> None:
    model.record(lines, ["L1.out", "L3.out"], tmp_path / "some")
    model.record(lines, ["L1.out"], tmp_path / "last", every_token=False)
    with pytest.raises(UsageError, match=r"has no L0\.out"):
        model.train_lens(recorded(tmp_path / "some"))
    with pytest.raises(UsageError, match=r"has no L2\.out"):
        model.train_sae(recorded(tmp_path / "some"), "L2.out")
    with pytest.raises(UsageError, match="holds only the last token of each document"):
        model.train_sae(recorded(tmp_path / "last"), "L1.out", features=8, k=2, tokens=40, batch=20)


PAIRS = [
    {"source": f"the {day} of {month} {year}", "target": f"{year}-{n:02}-{number:02}"}
    for n, month in ((3, "March"), (5, "May"), (11, "November"))
    for number, day in ((3, "third"), (10, "tenth"), (21, "twenty-first"))
    for year in (1994, 2007, 1971, 2015)
]
STACKS_AT = ("L*.out", "L1.cross.attn", "L1.ffn.act", "embed.out")


@pytest.fixture(scope="module")
def translator() -> Model:
    return tinytf.load("tiny-translator")


@pytest.fixture
def pairs(tmp_path: Path) -> Corpus:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), "utf-8")
    return find_files([path], Reading(field="", form="pair"))


def test_of_two_stacks_the_rows_are_the_targets_and_the_sources_are_kept(
    translator: Model, pairs: Corpus, tmp_path: Path
) -> None:
    report = translator.record(pairs, STACKS_AT, tmp_path / "acts", shard_size=0.02)
    assert (report.complete, report.documents) == (True, len(PAIRS))
    assert report.shards > 2
    corpus = recorded(tmp_path / "acts")
    assert set(corpus.sources) == set(range(len(PAIRS)))
    for number, pair in enumerate(PAIRS):
        source = translator.encoder.trace(pair["source"])
        trace = translator.reading(source).trace(pair["target"])
        own = corpus.documents[:] == number
        assert list(corpus.sources[number]) == source.encoding.ids
        assert corpus.tokens[:][own].tolist() == trace.encoding.ids[1:]
        assert corpus.positions[:][own].tolist() == list(range(len(trace.encoding.ids) - 1))
        for address in corpus.steps:
            torch.testing.assert_close(corpus.at(address)[:][own], trace[address][1:], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Stopped, KeyboardInterrupt])
def test_a_recording_of_two_stacks_goes_on_where_it_was_stopped(
    kind: type[BaseException], translator: Model, pairs: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator.record(pairs, STACKS_AT, tmp_path / "whole", shard_size=0.02)
    calls, call = 0, Passes.__call__

    def stopping(self: Passes, windows: list[Window]) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise kind
        return call(self, windows)

    monkeypatch.setattr(Passes, "__call__", stopping)
    with pytest.raises(Stopped) if kind is Stopped else nullcontext():
        translator.record(pairs, STACKS_AT, tmp_path / "acts", shard_size=0.02)
    translator.record(pairs, STACKS_AT, tmp_path / "acts", shard_size=0.02)
    assert files_of(tmp_path / "acts") == files_of(tmp_path / "whole")


def test_what_reads_a_recording_gives_the_same_as_running_the_pairs(
    translator: Model, pairs: Corpus, tmp_path: Path
) -> None:
    translator.record(pairs, ["L*.out", "L1.ffn.act", "embed.out"], tmp_path / "acts")
    corpus, bound = recorded(tmp_path / "acts"), translator.reading(PAIRS[0]["source"])
    run, read = (translator.top_examples(of, ["L1.5", "L1.70"]).units for of in (pairs, corpus))
    traces = [translator.reading(pair["source"]).trace(pair["target"]) for pair in PAIRS]
    for unit in run:
        places = [[(e.document, e.position) for e in found[unit]] for found in (run, read)]
        assert places[0] == places[1]
        best = max(float(trace["L1.ffn.act"][1:, unit.index].abs().max()) for trace in traces)
        assert abs(run[unit][0].activation) == pytest.approx(best, rel=1e-4)
    settings = {"features": 32, "k": 4, "tokens": 2048, "batch": 64}
    of_run, of_read = (translator.train_sae(of, "L1.ffn.act", **settings) for of in (pairs, corpus))
    assert of_read.held_out.loss is not None
    assert of_read.held_out.loss == pytest.approx(of_run.held_out.loss, rel=1e-3)
    assert bound.train_lens(corpus, steps=2).stages[-1].logit.value > 0


def test_a_corpus_that_two_stacks_cannot_read_is_refused(
    translator: Model, pairs: Corpus, lines: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="one text in each document"):
        translator.record(lines, ["L0.out"], tmp_path / "acts")
    with pytest.raises(UsageError, match=r"pair 1: the target has 11 tokens, and a window 6"):
        translator.record(pairs, ["L0.out"], tmp_path / "acts", window=6)
    config = ModelConfig.of(**{**translator.config.to_dict(), "encoder": None, "shares_embeddings": False})
    without = Model("decoder", Transformer.initialised(config, 0), translator.tokenizer, "")
    with pytest.raises(UsageError, match="the encoder of this model is not opened"):
        without.record(pairs, ["L0.out"], tmp_path / "other")
