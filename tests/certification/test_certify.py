"""A model beside the same one of transformers: what agrees is certified, and what was broken on purpose is not."""

import copy
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from reference import T, V, saved
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models

import tinytf
from tinytf.certification.certify import certify, certify_model
from tinytf.certification.texts import HARD_TEXTS
from tinytf.errors import CheckpointError, UsageError
from tinytf_cli.main import run

_CHOSEN = ("plain words", "one letter", "numbers", "emoji and joiners", "long")
SOME = tuple(one for one in HARD_TEXTS if one.name in _CHOSEN)
LETTERS = "etaoinshrdlcumwfgypbvk .,'TD0123456789"


def with_tokenizer(family: str, folder: Path) -> Path:
    """The directory of a random model of the parity tests, with a tokenizer of as many letters as it knows tokens."""
    directory = folder / family
    shutil.copytree(saved(family), directory)
    vocabulary = {piece: number for number, piece in enumerate(["[UNK]", "<pad>", "</s>", *LETTERS])}
    assert len(vocabulary) == V
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))
    library.decoder = decoders.Fuse()
    library.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return directory


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return with_tokenizer("llama 3", tmp_path_factory.mktemp("certify"))


@pytest.fixture
def opened(llama) -> tinytf.Model:
    return tinytf.load(llama, device="cpu")


def named(found):
    return {one.name: one for one in found.checks if one.dtype in ("", "float32")}


DECODER = ["ids", "every layer", "logits", "in a batch, padded on the left", "in a batch, padded on the right",
           "token by token, with a cache", "the text in pieces of 7"]  # fmt: skip


@pytest.mark.parametrize("family", ["t5", "m2m-100"])
def test_both_stacks_are_certified_and_a_changed_one_is_told(family: str, tmp_path: Path) -> None:
    folder = with_tokenizer(family, tmp_path)
    model = tinytf.load(folder, device="cpu")
    found = certify_model(model, folder, texts=SOME[:3])
    assert found.holds, found.sentence
    assert [check.name for check in found.checks] == DECODER
    names = [layer.step for layer in found.layers]
    assert names[0] == "enc.embed.out"
    assert names[-1] == "final.norm"
    assert model.transformer.encoder is not None
    with torch.no_grad():
        next(iter(model.transformer.encoder.blocks[-1].attention.v.parameters())).mul_(1.01)
    first = next(check.first for check in certify_model(model, folder, texts=SOME[:3]).checks if not check.holds)
    assert first.startswith((f"enc.L{len(model.transformer.encoder.blocks) - 1}.out,", "enc.final"))


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("family", "checks"),
    [
        ("llama 3", DECODER),
        ("gpt2", DECODER),
        ("gemma 2", DECODER),
        ("gemma 3n", DECODER),
        ("opt", DECODER),
        ("mixtral", DECODER),
        ("llama with classes", [*DECODER[:2], *DECODER[2:5]]),
        ("bert with a masked head", DECODER[:5]),
        ("roberta with a pooler", [*DECODER[:2], *DECODER[3:5]]),
    ],
)
def test_a_model_that_agrees_is_certified(family, checks, tmp_path):
    found = certify(str(with_tokenizer(family, tmp_path)), texts=SOME, device="cpu")
    assert found.holds, [one for one in found.checks if not one.holds]
    assert [one.name for one in found.checks] == checks
    assert all(one.difference <= one.tolerance == 1e-4 for one in found.checks[1:])
    assert max(one.difference for one in found.checks) > 0
    assert [one.step for one in found.layers][-1] in ("final.norm", "L2.norm2")
    assert named(found)["every layer"].difference == max(one.difference for one in found.layers)


def test_in_bfloat16_what_transformers_itself_loses_is_allowed_too(llama):
    found = certify(str(llama), texts=SOME, dtype="bfloat16", device="cpu")
    half = [one for one in found.checks if one.dtype == "bfloat16"]
    assert found.holds
    assert [one.name for one in half] == DECODER[1:]
    assert all(one.difference > 1e-3 and one.tolerance >= 0.1 for one in half)


def test_half_precision_hides_no_weight_that_is_wrong(llama, opened):
    wrong = broken(opened, lambda model: model.blocks[1].attention.o.weight.mul_(1.5))
    found = certify_model(wrong, llama, texts=SOME[:2], dtype="bfloat16")
    assert {one.name for one in found.checks if one.dtype == "bfloat16" and not one.holds} == set(DECODER[1:])


def test_a_mixture_of_experts_is_compared_in_float32_alone_and_says_so(tmp_path):
    found = certify(str(with_tokenizer("mixtral", tmp_path)), texts=SOME, dtype="bfloat16", device="cpu")
    assert {one.dtype for one in found.checks} == {"", "float32"}
    assert found.notes == (
        "bfloat16 is not compared: rounding sends tokens to other experts, and their numbers are others",
    )


def broken(model: tinytf.Model, change) -> tinytf.Model:
    transformer = copy.deepcopy(model.transformer)
    with torch.no_grad():
        change(transformer)
    return replace(model, transformer=transformer)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_said_first_and_counts_as_no_size(llama, opened, number, capsys):
    with torch.no_grad():
        opened.transformer.blocks[1].ffn.down.weight[0, 0] = number
    found = certify_model(opened, llama, texts=SOME[:2])
    assert not found.holds
    assert found.sentence.startswith("The model is not finite in float32, first at L1.out, token 0, ")
    failing = [one for one in found.checks if not one.holds]
    assert {one.difference for one in failing} == {float("inf")}
    assert all(one.not_finite is not None and one.not_finite.sides == "A" for one in failing)
    found.show()
    assert not {"nan", "inf", "1.8e+308"} & set(capsys.readouterr().out.split())


def test_an_overflow_of_float16_is_said_with_its_number(llama, opened):
    directory = llama.parent / "grown"
    shutil.copytree(llama, directory)
    weights = load_file(directory / "model.safetensors")
    name = next(one for one in weights if one.endswith("layers.1.mlp.down_proj.weight"))
    weights[name] *= 6e4 / float(weights[name].abs().max())
    norm = "model.layers.1.post_attention_layernorm.weight"
    weights[norm] *= 1e3
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    found = certify(str(directory), texts=SOME[:2], dtype="float16", device="cpu")
    start = "The model and transformers are not finite in float16, first at L1.out, token "
    assert found.sentence.startswith(start)
    assert "beyond float16's 65,504" in found.sentence


@torch.no_grad()
def test_a_weight_changed_in_memory_is_found_in_its_layer_by_its_true_size(llama, opened):
    wrong = broken(opened, lambda model: model.blocks[1].ffn.down.weight[0, 0].add_(0.5))
    found = certify_model(wrong, llama, texts=SOME[:1])
    checks = named(found)
    assert not found.holds
    assert [one.name for one in found.checks if one.holds] == ["ids"]
    apart = {one.step: one.difference for one in found.layers}
    assert apart["L0.out"] < 1e-5 < 1e-2 < apart["L1.out"]

    theirs = transformers.LlamaForCausalLM.from_pretrained(llama).eval()
    theirs.model.layers[1].mlp.down_proj.weight[0, 0] += 0.5
    ids = torch.tensor([opened.tokenizer.encode(SOME[0].text).ids[:T]])
    right = transformers.LlamaForCausalLM.from_pretrained(llama).eval()(ids).logits[0]
    expected = ((theirs(ids).logits[0] - right).abs().amax(-1) / right.abs().amax(-1)).max()
    assert checks["logits"].difference == pytest.approx(float(expected), rel=1e-3)


def test_a_mask_that_is_left_out_is_found(llama, opened):
    found = certify_model(opened.without("mask"), llama, texts=SOME[:1])
    assert not named(found)["every layer"].holds


def test_padding_that_is_seen_is_found_in_the_batch_alone(llama, opened, monkeypatch):
    whole = type(opened.transformer).hidden

    def unmasked(self, ids, *, padding_mask=None, cache=None, source=None):
        return whole(self, ids, cache=cache)

    monkeypatch.setattr(type(opened.transformer), "hidden", unmasked)
    found = certify_model(opened, llama, texts=SOME)
    assert [one.name for one in found.checks if not one.holds] == ["in a batch, padded on the left"]


def test_ids_that_differ_are_counted_and_the_first_is_named(llama, opened, tmp_path):
    data = json.loads((llama / "tokenizer.json").read_text("utf-8"))
    data["model"]["vocab"] |= {"1": data["model"]["vocab"]["0"], "0": data["model"]["vocab"]["1"]}
    other = shutil.copytree(llama, tmp_path / "other")
    (other / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    found = certify_model(opened, other, texts=SOME)
    check = named(found)["ids"]
    changed = [one for one in SOME if {"0", "1"} & set(one.text)]
    place = next(i for i, letter in enumerate(changed[0].text) if letter in "01")
    assert (check.difference, check.where) == (len(changed), f"token {place}, {changed[0].name}")
    assert not check.holds
    assert named(found)["every layer"].holds


def test_a_number_that_is_no_number_never_holds(llama, opened):
    wrong = broken(opened, lambda model: model.final_norm.weight[0].fill_(torch.nan))
    found = certify_model(wrong, llama, texts=SOME[:1])
    assert not named(found)["logits"].holds
    assert not certify_model(wrong, llama, texts=SOME[:1], tolerance=1e9).holds


def test_the_tolerance_is_the_users_where_one_is_given(llama, opened):
    wrong = broken(opened, lambda model: model.blocks[1].ffn.down.weight[0, 0].add_(0.5))
    assert certify_model(wrong, llama, texts=SOME[:1], tolerance=10).holds
    assert not certify_model(opened, llama, texts=SOME[:1], tolerance=0).holds


def test_models_of_other_sizes_are_refused(llama, tmp_path):
    other = with_tokenizer("gpt2", tmp_path)
    config = json.loads((other / "config.json").read_text("utf-8"))
    small = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**config, "n_layer": 2}))
    small.save_pretrained(other)
    with pytest.raises(UsageError, match="different sizes: 3 layers of 24, and 2 layers of 24"):
        certify(str(llama), versus=other, texts=SOME[:1], device="cpu")


def test_models_of_other_vocabularies_are_refused(llama, tmp_path):
    other = shutil.copytree(llama, tmp_path / "less")
    config = json.loads((other / "config.json").read_text("utf-8"))
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**config, "vocab_size": 20})).save_pretrained(other)
    with pytest.raises(UsageError, match="different vocabularies: 41 and 20 tokens"):
        certify(str(llama), versus=other, texts=SOME, device="cpu")


def test_what_transformers_cannot_open_is_one_clear_error(llama, tmp_path):
    with pytest.raises(UsageError, match=r"tiny \(tinytf run\) is not a directory that transformers can open"):
        certify("tiny", device="cpu")
    with pytest.raises(CheckpointError, match="transformers cannot open"):
        certify("tiny", versus=tmp_path, device="cpu")
    broken = shutil.copytree(llama, tmp_path / "less")
    tensors = load_file(broken / "model.safetensors")
    tensors.pop("model.layers.1.mlp.down_proj.weight")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"finds no model\.layers\.1\.mlp\.down_proj\.weight"):
        certify(str(llama), versus=broken, texts=SOME[:1], device="cpu")


def test_no_code_of_a_model_is_run(llama, tmp_path):
    remote = shutil.copytree(llama, tmp_path / "remote")
    config = json.loads((remote / "config.json").read_text("utf-8"))
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (remote / "config.json").write_text(json.dumps(config), "utf-8")
    (remote / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", "utf-8")
    with pytest.raises(CheckpointError, match="transformers cannot open"):
        certify(str(llama), versus=remote, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_the_hard_texts_have_names_of_their_own_and_a_long_one():
    assert len({one.name for one in HARD_TEXTS}) == len({one.text for one in HARD_TEXTS}) == len(HARD_TEXTS)
    assert [one.name for one in HARD_TEXTS if one.repeated] == ["long"]


def test_the_command_answers_with_its_status_a_table_and_json(llama, opened, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat\n\nthe dog sat\n", "utf-8")
    assert run(["certify", str(llama), "--texts", str(texts), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("On 2 texts the model has the tokens and numbers of transformers; ")
    assert any(line.startswith("certified: 7 checks hold") for line in shown[:6])
    assert len(shown) < 45
    assert run(["certify", str(llama), "--texts", str(texts), "--device", "cpu", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["kind"], data["holds"], data["transformers"]) == ("certify", True, transformers.__version__)
    assert [(one["name"], one["texts"]) for one in data["checks"]] == [(name, 2) for name in DECODER]

    wrong = tmp_path / "wrong"
    broken(opened, lambda model: model.blocks[2].attention.v.weight.mul_(1.01)).export(wrong)
    assert run(["certify", str(wrong), "--versus", str(llama), "--texts", str(texts), "--device", "cpu"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("not certified: 6 checks of 7, first every layer") for line in shown)


def test_without_transformers_the_command_says_how_to_get_it(llama, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run(["certify", str(llama), "--device", "cpu"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "tinytf: error: this goes through transformers, which is not installed",
        'hint: pip install "tinytf[hf]"',
    ]


def test_a_file_of_texts_that_has_none_is_refused(llama, tmp_path, capsys):
    path = tmp_path / "texts.txt"
    for data, message in ((None, "cannot read"), (b" \n\n", "has no word"), (b"\xff", "is not UTF-8")):
        if data is not None:
            path.write_bytes(data)
        assert run(["certify", str(llama), "--texts", str(path)]) == 2
        said, hint = capsys.readouterr().err.splitlines()
        assert message in said
        assert hint.startswith("hint: ")
