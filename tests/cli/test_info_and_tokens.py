"""Totals that add up, and tokens that cover the text."""

import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from architectures import encoding_of
from driving import SENTENCE, WIDE, Tinytf, is_a_clean_error

from tinytf.loading import Model, load
from tinytf.presets import PRESETS
from tinytf.trace.record import record
from tinytf_cli.views import tokens as tokens_view

# The published parameter counts: GPT-2 small, and BERT base uncased with its pooler.
PUBLISHED = {"gpt2": 124_439_808, "bert-base": 109_482_240}


@pytest.mark.parametrize("name", PRESETS)
def test_the_parts_of_a_model_add_up_to_its_total(tinytf: Tinytf, name: str) -> None:
    data = json.loads(tinytf("info", f"preset:{name}", "--json").out)
    assert (data["schema_version"], data["kind"]) == (3, "info")
    for part in data["parameters"]:
        assert part["total"] == part["each"] * part["copies"]
    assert sum(part["total"] for part in data["parameters"]) == data["total_parameters"]
    assert data["total_parameters"] == PUBLISHED.get(name, data["total_parameters"])
    assert data["memory_bytes"] == {"fp32": 4 * data["total_parameters"], "bf16": 2 * data["total_parameters"]}
    work = data["flops_per_token"]
    assert work["total"] == sum(work[part] for part in ("projections", "attention", "feed_forward", "head"))
    text = tinytf("info", f"preset:{name}").out
    assert f"{data['total_parameters']:,} parameters" in text
    for part in data["parameters"]:
        assert f"{part['total']:,}" in text


def test_info_counts_the_opened_model_too(tinytf: Tinytf, decoder: Path, encoder: Path) -> None:
    for folder in (decoder, encoder):
        data = json.loads(tinytf("info", folder, "--json").out)
        shapes = [tuple(p.shape) for p in load(str(folder), device="cpu").transformer.parameters()]
        assert data["counted_parameters"] == data["total_parameters"] == sum(map(math.prod, shapes))
        assert f"checked: the opened model holds {data['total_parameters']:,}" in tinytf("info", folder).out


def test_info_says_what_a_trace_keeps(tinytf: Tinytf, decoder: Path) -> None:
    said = json.loads(tinytf("info", decoder, "--json").out)["trace_bytes"]
    model = load(str(decoder), device="cpu").transformer
    ids = [token % model.config.vocab_size for token in range(said["tokens"])]
    assert said["tokens"] == min(512, model.config.context)
    assert said["fp32"] == 2 * said["bf16"] == record(model, encoding_of(ids)).recorded_bytes


def test_the_key_value_cache_is_two_vectors_a_head_and_layer(tinytf: Tinytf) -> None:
    data = json.loads(tinytf("info", "preset:llama-tiny", "--json").out)
    config = PRESETS["llama-tiny"]
    vectors = 2 * config.n_layers * config.n_kv_heads
    assert data["kv_cache_bytes_per_token"]["fp32"] == vectors * config.d_head * 4
    assert json.loads(tinytf("info", "preset:paper", "--json").out)["kv_cache_bytes_per_token"]["fp32"] == 0


@pytest.mark.parametrize("text", [SENTENCE, "  two  spaces\n\tand a tab ", "café 😀", *WIDE.values()])
def test_byte_level_tokens_cover_every_byte_of_the_text(tinytf: Tinytf, decoder: Path, text: str) -> None:
    tokens = json.loads(tinytf("tokens", text, "-m", decoder, "--json").out)["tokens"]
    assert b"".join(bytes.fromhex(token["bytes"]) for token in tokens) == text.encode()
    assert [token["index"] for token in tokens] == list(range(len(tokens)))
    assert tokens[0]["start"] == 0
    assert tokens[-1]["end"] == len(text)
    for token, following in pairwise(tokens):
        # A token starts where the last one ended, or inside a character that two of them share.
        assert following["start"] in (token["end"], token["end"] - 1)
    for token in tokens:
        whole = text[token["start"] : token["end"]].encode()
        assert bytes.fromhex(token["bytes"]) in whole


def test_the_pieces_of_wordpiece_have_the_offsets_of_the_text(tinytf: Tinytf, encoder: Path) -> None:
    text = "The  CAT, sat"
    tokens = json.loads(tinytf("tokens", text, "-m", encoder, "--json").out)["tokens"]
    assert (tokens[0]["shown"], tokens[-1]["shown"]) == ("[CLS]", "[SEP]")
    assert tokens[0]["special"]
    assert tokens[-1]["special"]
    for token in tokens[1:-1]:
        covered = text[token["start"] : token["end"]]
        assert covered.lower() == token["shown"].removeprefix("##")
        assert bytes.fromhex(token["bytes"]).decode() == covered


def test_what_the_tokenizer_added_is_said(tinytf: Tinytf, decoder: Path, encoder: Path) -> None:
    assert "[CLS] added before, [SEP] added after" in tinytf("tokens", SENTENCE, "-m", encoder).out
    assert "no start or end token added" in tinytf("tokens", SENTENCE, "-m", decoder).out


def test_the_table_of_tokens_has_a_line_for_each(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    tokens = opened.encode(SENTENCE).tokens
    lines = tinytf("tokens", SENTENCE, "-m", decoder).lines[-len(tokens) :]
    for place, (token, line) in enumerate(zip(tokens, lines, strict=True)):
        words = line.split()
        assert words[:4] == [str(place), token.shown, str(token.id), f"{token.start}:{token.end}"]
        assert "".join(words[5:]) == token.data.hex()


def _rows(out: str) -> list[list[str]]:
    return [words for line in out.splitlines() if (words := line.split()) and len(words) > 4 and ":" in words[3]]


def test_a_screen_takes_the_first_tokens_and_a_pipe_all(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    text = "the cat sat on the mat " * 20
    tokens = opened.tokenizer.encode(text).tokens
    screen = tinytf("tokens", text, "-m", decoder, "--no-pager", "--color", "never", screen=True)
    assert len(screen.lines) <= 24
    shown = _rows(screen.out)
    assert [row[1] for row in shown] == [token.shown for token in tokens[: len(shown)]]
    assert f"{len(tokens) - len(shown):,} more tokens; --limit 0 shows all" in screen.lines[-1]
    whole = tinytf("tokens", text, "-m", decoder)
    everything = tinytf("tokens", text, "-m", decoder, "--no-pager", "--limit", "0", screen=True)
    assert [row[1] for row in _rows(whole.out)] == [token.shown for token in tokens]
    assert len(_rows(everything.out)) == len(tokens)
    assert len(_rows(tinytf("tokens", text, "-m", decoder, "--limit", "5").out)) == 5
    assert len(json.loads(tinytf("tokens", text, "-m", decoder, "--limit", "5", "--json").out)["tokens"]) == len(tokens)


def test_a_long_table_is_made_in_parts_that_stand_below_each_other(
    tinytf: Tinytf, decoder: Path, opened: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SENTENCE + " 坐 dog" * 20
    whole = tinytf("tokens", text, "-m", decoder).lines
    monkeypatch.setattr(tokens_view, "_PART", 7)
    parts = tinytf("tokens", text, "-m", decoder).lines
    assert [line.split() for line in parts] == [line.split() for line in whole]
    head = next(line for line in parts if "piece" in line)
    below = parts[parts.index(head) + 1 :]
    assert len(below) == len(opened.tokenizer.encode(text).tokens)
    assert len({line.index(line.split()[3]) + len(line.split()[3]) for line in below}) == 1  # offsets end alike


def test_counts_are_said_in_tokens_characters_and_bytes(tinytf: Tinytf, decoder: Path) -> None:
    assert "5 characters, 9 bytes" in tinytf("tokens", "aé坐bß", "-m", decoder).out


@pytest.mark.parametrize("name", ["tiny", "tiny-encoder"])
def test_the_built_in_models_open_and_add_up(tinytf: Tinytf, name: str) -> None:
    for command in ("trace", "attention"):
        ran = tinytf(command, SENTENCE, "-m", name)
        assert (ran.status, ran.err) == (0, "")
        assert any(line.startswith("checked: ") for line in ran.lines[-4:])
    assert tinytf("tokens", SENTENCE, "-m", name).status == 0
    assert tinytf("info", name).status == 0


def test_the_shapes_of_a_batch_are_those_that_the_running_model_makes_and_no_text_changes_another(
    tinytf: Tinytf, decoder: Path, opened: Model
) -> None:
    data = json.loads(tinytf("info", decoder, "--batch", "3", "--length", "5", "--json").out)
    shapes = {row["step"].replace("L0.", "blocks.0."): tuple(row["shape"]) for row in data["shapes"]}
    made: dict[str, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_hook(lambda _, ids, out, name=name: made.setdefault(name, tuple(out.shape)) and None)
        for name, module in opened.transformer.named_modules()
        if name in shapes
    ]
    ids = torch.arange(15).reshape(3, 5)
    with torch.no_grad():
        logits = opened.transformer(ids)
        for hook in hooks:
            hook.remove()
        alone = torch.cat([opened.transformer(text[None]) for text in ids])
    assert made == {name: shapes[name] for name in made}
    assert shapes["embed.positions"] == (5, 16)  # every text has the same
    assert {f"blocks.0.{name}" for name in ("scores", "weights", "head_out", "concat", "ffn.act", "out")} <= set(made)
    assert shapes["logits"] == tuple(logits.shape)
    assert torch.allclose(logits, alone, atol=1e-5)


def test_a_batch_that_the_model_does_not_take_is_said_with_the_limit(tinytf: Tinytf, decoder: Path) -> None:
    for given in (("--length", "65"), ("--batch", "0"), ("--batch", "2", "--positions")):
        ran = tinytf("info", decoder, *given)
        assert ran.status == 2
        assert is_a_clean_error(ran)
    assert "1 to 64 tokens" in tinytf("info", decoder, "--length", "65").err


def test_windows_slide_by_one_and_each_target_is_the_token_after(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    ids = opened.encode(SENTENCE).ids
    ran = tinytf("tokens", SENTENCE, "-m", decoder, "--windows", "3", "--json")
    windows = json.loads(ran.out)["windows"]
    assert len(windows) == len(ids) - 3
    for start, window in enumerate(windows):
        assert window["x"] == ids[start : start + 3]
        assert window["y"] == [ids[start + place + 1] for place in range(3)]
    text = tinytf("tokens", SENTENCE, "-m", decoder, "--windows", "3").out
    shown = [opened.tokenizer.shown(i) for i in ids]
    rows = [line.split() for line in text.partition("\nwindows ")[2].splitlines()[2:]]
    assert rows[0] == ["0", "x", *shown[:3], *map(str, ids[:3])]
    assert rows[1] == ["y", *shown[1:4], *map(str, ids[1:4])]
    assert len(rows) == 2 * len(windows)


def test_characters_are_numbered_in_their_order(tinytf: Tinytf) -> None:
    text = "# Transformers"
    data = json.loads(tinytf("tokens", text, "--characters", "--json").out)
    assert [token["id"] for token in data["tokens"]] == [sorted(set(text)).index(char) for char in text]
    drawn = tinytf("tokens", text, "--characters", "--windows", "8").out
    assert "   ".join(f"{char} {i}" for i, char in enumerate("·" + "".join(sorted(set(text)))[1:])) in drawn


def test_a_window_that_is_too_long_and_a_conversation_in_characters_are_said(tinytf: Tinytf, decoder: Path) -> None:
    for given in (("--windows", "6"), ("--windows", "0"), ("--versus", "tiny", "--windows", "2")):
        assert is_a_clean_error(tinytf("tokens", SENTENCE, "-m", decoder, *given))
    assert "--windows 5 is the most" in tinytf("tokens", SENTENCE, "-m", decoder, "--windows", "6").err


def test_a_guessed_tokenizer_is_announced_until_it_is_said(tinytf: Tinytf, llama: Path, tmp_path: Path) -> None:
    model, place = tmp_path / "model", tmp_path / "place"
    shutil.copytree(llama, model, ignore=shutil.ignore_patterns("token*", "special*"))
    place.mkdir()
    (place / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nQ\nv\n##V", "utf-8")
    ran = tinytf("trace", "-m", model, "Q")
    assert is_a_clean_error(ran, 1)
    assert "hint: --tokenizer names another place for it" in ran.err
    read_there = ("-m", model, "--tokenizer", f"{place}/vocab.txt")
    for command in ("trace", "tokens"):
        shown = " ".join(tinytf(command, *read_there, "Q").out.split())
        assert "no text produces 2 of its 8 entries, such as Q, ##V." in shown
    data = json.loads(tinytf("trace", *read_there, "Q", "--json").out)["model"]
    assert (data["tokenizer"]["assumed"]["do_lower_case"], data["tokenizer"]["never_produced"]) == (True, 2)
    said = (*read_there[:-1], f"{place}/vocab.txt,do_lower_case=false")
    tokenized = json.loads(tinytf("tokens", *said, "QV", "--json").out)
    assert [token["id"] for token in tokenized["tokens"]] == [1, 5, 7, 2]
    assert tokenized["tokenizer"]["note"] == f"that of {place}/vocab.txt, from vocab.txt, with do_lower_case=false"
    shutil.copy(place / "vocab.txt", model)
    assert "the tokenizer is guessed" in tinytf("info", model).out
