"""What is wrong is said in one line, with the numbers and the limit, what exists instead, or what is nearest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from driving import SENTENCE, Tinytf, is_a_clean_error
from failing_disk import BROKEN, FULL, TORN, Disk, failing
from safetensors.torch import load_file, save_file

from tinytf.loading import Model
from tinytf_cli.command import load
from tinytf_cli.failing import explained
from tinytf_cli.main import EVERY

TRACING = ("trace", "attention")


@pytest.mark.parametrize("command", [*TRACING, "tokens"])
def test_an_empty_text_is_refused(tinytf: Tinytf, decoder: Path, command: str) -> None:
    for given in (("",), ()):
        ran = tinytf(command, *given, "-m", decoder)
        assert is_a_clean_error(ran)
        assert "the text is empty" in ran.err


@pytest.mark.parametrize("command", TRACING)
@pytest.mark.parametrize("text", [" ", "   ", "\t\n ", "\u3000"])
def test_white_space_alone_is_no_text_to_trace(tinytf: Tinytf, decoder: Path, command: str, text: str) -> None:
    ran = tinytf(command, text, "-m", decoder)
    assert is_a_clean_error(ran)
    assert "only white space" in ran.err


def test_white_space_alone_has_tokens_nevertheless(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("tokens", "   ", "-m", decoder, "--json")
    assert "".join(token["bytes"] for token in json.loads(ran.out)["tokens"]) == "202020"


@pytest.mark.parametrize("command", TRACING)
def test_ten_thousand_words_are_refused_with_both_numbers(
    tinytf: Tinytf, decoder: Path, opened: Model, command: str
) -> None:
    text = " ".join(["cat"] * 10_000)
    ran = tinytf(command, text, "-m", decoder)
    assert is_a_clean_error(ran)
    count = len(opened.tokenizer.library.encode(text).ids)
    assert f"{count:,} tokens" in ran.err
    assert f"at most {opened.config.context:,}" in ran.err
    assert "--truncate" in ran.err


@pytest.mark.parametrize("command", [*TRACING, "tokens"])
def test_truncate_keeps_the_first_tokens_and_says_how_many_it_cut(
    tinytf: Tinytf, decoder: Path, opened: Model, command: str
) -> None:
    text = " ".join(["cat"] * 10_000)
    ran = tinytf(command, text, "-m", decoder, "--truncate", "--json")
    assert ran.status == 0
    ids = opened.tokenizer.library.encode(text).ids
    data = json.loads(ran.out)
    assert [token["id"] for token in data["tokens"]] == ids[: opened.config.context]
    context = opened.config.context
    assert data["added"].endswith(f"{len(ids) - context:,} tokens cut from the end, beyond {context:,}")


def test_truncation_of_an_encoder_keeps_its_end_token(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("trace", " ".join(["cat"] * 500), "-m", encoder, "--truncate", "--json", "--pipeline")
    tokens = json.loads(ran.out)["tokens"]
    assert (len(tokens), tokens[0]["shown"], tokens[-1]["shown"]) == (64, "[CLS]", "[SEP]")


@pytest.mark.parametrize("command", [*TRACING, "tokens"])
def test_bytes_that_are_no_utf8_are_refused_in_an_argument_and_in_a_pipe(
    tinytf: Tinytf, decoder: Path, command: str
) -> None:
    ran = tinytf(command, "caf\udce9", "-m", decoder)  # what Python makes of the argument b"caf\xe9"
    assert is_a_clean_error(ran)
    assert "lone surrogate" in ran.err
    ran = tinytf(command, "-", "-m", decoder, stdin=b"caf\xe9 au lait")
    assert is_a_clean_error(ran)
    assert "byte 0xe9 at offset 3" in ran.err


def test_an_option_that_is_an_argument_is_said_to_be_one(tinytf: Tinytf) -> None:
    hint = "hint: it is an argument: tinytf info [MODEL]\n"
    assert tinytf("info", "--model", "tiny").err == f"tinytf: error: there is no option --model\n{hint}"


def test_an_unknown_command_option_or_value_names_the_nearest(tinytf: Tinytf) -> None:
    for arguments, hint in (
        (["trase", "a"], "trace"),
        (["trace", "a", "--jsn"], "--json"),
        (["attention", "a", "--by", "entropie"], "entropy"),
        (["trace", "a", "--dtype", "float8"], "float16"),
        (["trace", "a", "--color", "yes"], "always"),
    ):
        ran = tinytf(*arguments)
        assert is_a_clean_error(ran)
        assert hint in ran.err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tinny", "did you mean tiny?"),
        ("tiny-encodr", "did you mean tiny-encoder?"),
        ("preset:gpt3", "did you mean gpt2?"),
        ("qqqqqqqq", "tinytf models lists"),
    ],
)
@pytest.mark.parametrize("command", [*TRACING, "tokens", "info"])
def test_an_unknown_model_names_the_nearest_or_all(tinytf: Tinytf, command: str, name: str, hint: str) -> None:
    ran = tinytf(command, name) if command == "info" else tinytf(command, SENTENCE, "-m", name)
    assert is_a_clean_error(ran)
    assert hint in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layer", "2"], "there is no layer 2: the model has 2 layers, 0 to 1"),
        (["--layer", "-3"], "there is no layer -3: the model has 2 layers, 0 to 1"),
        (["--layer", "9" * 30], "there is no layer 9999"),
        (["--head", "7"], "there is no head 7: the model has 2 heads, 0 to 1"),
        (["--head", "-9"], "there is no head -9"),
        (["--head", "9" * 30], "there is no head 9999"),
        (["--layer", "9" * 5000], "99"),
        (["--layer", "1.5"], "'1.5' is not a list of layers: '1.5' at character 1 is not a number"),
        (["--layer", "0,x"], "'0,x' is not a list of layers: 'x' at character 3 is not a number"),
        (["--head", "0,1"], "'0,1' names 2 heads, but one is needed"),
        (["--at", "L9"], "there is no layer 9"),
        (["--at", "L0H9.weights"], "there is no head 9"),
        (["--at", "L" + "9" * 5000], "99"),
        (["--at", "L1-0.weights"], "run backwards"),
        (["--at", "L0.wieghts"], "did you mean weights?"),
        (["--step", "wieghts"], "did you mean weights?"),
        (["--step", ""], "''"),
        (["--at", ""], "'' is not an address"),
        (["--at", "weights"], "a step of every layer"),
        (["--at", "L0.logits"], "is not inside a layer"),
        (["--at", "L0.q_rot"], "positions are learned"),
        (["--at", "L0H0.mid"], "is not split into heads"),
        (["--at", "L0H0.weights[0,0,0]"], "at most two words"),
        (["--at", "ids[0]"], "no cells"),
        (["--at", "next[0]"], "no cells"),
        (["--at", "L0H0.weights[99,0]"], "query 99 is out of range"),
        (["--at", "L0H0.weights[0,-99]"], "key -99 is out of range"),
        (["--at", "L0H0.weights[²,0]"], "²"),
        (["--at", "L0H0.weights[--1,0]"], "--1"),
        (["--at", "L0H0.weights[0," + "9" * 5000 + "]"], "99"),
        (["--at", "L0H0.weights[elephant,0]"], "no token is 'elephant'"),
        (["--at", "blocks.0.hook_nothing"], "is not a name that this model has"),
        (["--width", "19"], "--width"),
        (["--width", "1001"], "--width"),
        (["--width", "wide"], "--width"),
        (["--dims", "-1"], "--dims"),
        (["--rows", "-1"], "--rows"),
        (["--top", "0"], "--top"),
        (["--seed", "-1"], "--seed"),
        (["--seed", "9" * 30], "--seed"),
        (["--json", "--format", "ndjson"], "--json and --format ndjson"),
    ],
)
def test_what_a_trace_cannot_show_is_said(tinytf: Tinytf, decoder: Path, arguments: list[str], said: str) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder, *arguments)
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_a_cell_with_more_words_than_the_step_has_axes_is_said(tinytf: Tinytf, encoder: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", encoder, "--at", "pooled[0,1]")
    assert is_a_clean_error(ran)
    assert tinytf("trace", SENTENCE, "-m", encoder, "--at", "pooled[0]").status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layer", "0", "--row", "0"], "it goes with no --row"),
        (["--layer", "0", "--top", "3"], "it goes with no --top"),
        (["--layer", "0", "--window", "0:1"], "it goes with no --window"),
        (["--head", "L0H0", "--row", "0", "--top", "3"], "--row shows one query"),
        (["--head", "L0H0", "--row", "0", "--window", "0:1"], "--row shows one query"),
        (["--head", "L0H0", "--row", "99"], "query 99 is out of range"),
        (["--head", "L0H0", "--row", "²"], "²"),
        (["--head", "L0H0", "--row", "--2"], "--2"),
        (["--head", "L0H0", "--row", "9" * 5000], "99"),
        (["--head", "L0H0", "--row", ""], "''"),
        (["--head", "L0H0", "--top", "0"], "--top"),
        (["--head", "L0H0", "--window", "x"], "no token is 'x'"),
        (["--head", "L0H0", "--window", ""], "'' is no query"),
        (["--head", "L0H0", "--window", "-1:2"], "[-1:2] selects no query"),
        (["--head", "L0H0", "--window", "2:1"], "[2:1] selects no query"),
        (["--head", "L0H0", "--window", "0:1,1:1"], "[1:1] selects no key"),
        (["--head", "L0H0", "--window", "0:1,0:1,0:1"], "is not a pair of ranges"),
        (["--head", "L0H0", "--window", "::2"], "skips positions"),
        (["--head", "L0H0", "--window", "0:" + "9" * 5000], "99"),
        (["--head", "L0"], ""),
        (["--head", "L5H0"], "there is no layer 5"),
        (["--head", "L0H0.q"], "is not a head"),
        (["--head", "L0H0.weights[0,0]"], "is not a head"),
        (["--head", "logits"], "is not a head"),
        (["--head", "nonsense"], "there is no step 'nonsense'"),
    ],
)
def test_what_attention_cannot_show_is_said(tinytf: Tinytf, decoder: Path, arguments: list[str], said: str) -> None:
    ran = tinytf("attention", SENTENCE, "-m", decoder, *arguments)
    if not said:
        assert ran.status == 0
        return
    assert is_a_clean_error(ran)
    assert said in ran.err


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_says_which_are(tinytf: Tinytf, decoder: Path, device: str) -> None:
    if {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}[device]:
        pytest.skip(f"{device} is there")
    ran = tinytf("trace", SENTENCE, "-m", decoder, "--device", device)
    assert is_a_clean_error(ran)
    assert f"{device} is not available here" in ran.err
    assert "cpu" in ran.err


def test_columns_that_are_no_number_are_ignored(tinytf: Tinytf, decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tinytf("tokens", SENTENCE, "-m", decoder)
    for columns in ("²", "", "wide", "-5", "0"):
        monkeypatch.setenv("COLUMNS", columns)
        assert tinytf("tokens", SENTENCE, "-m", decoder) == usual


# Model folders that are not whole.

Damage = Callable[[Path], Any]


def _change_config(**fields: object) -> Damage:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        config["model"].update(fields)
        (folder / "config.json").write_text(json.dumps(config), "utf-8")

    return change


def _change_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    def changed(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return changed


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _writes(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data)


DAMAGES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "no configuration": (lambda f: (f / "config.json").unlink(), ("there is no config.json",)),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ("there is no model.safetensors",)),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ("there is no tokenizer.json",)),
    "truncated weights": (_truncate, ("model.safetensors is damaged",)),
    "empty weights": (_writes("model.safetensors", b""), ("model.safetensors is damaged",)),
    "weights that are something else": (_writes("model.safetensors", b"\xff\x1b[31m" * 50), ("is damaged",)),
    "a configuration that is no JSON": (_writes("config.json", b'{"model": \x1b'), ("is not JSON", "line 1")),
    "a configuration that is a list": (_writes("config.json", b"[1]"), ("holds a list",)),
    "a configuration that is no UTF-8": (_writes("config.json", b'{"\xe9": 1}'), ("not UTF-8", "byte 2")),
    "a configuration without end": (_writes("config.json", b"[" * 100_000), ("config.json",)),
    "a number without end": (_writes("config.json", b'{"a": ' + b"9" * 5000 + b"}"), ("config.json",)),
    "another format": (_writes("config.json", b'{"architectures": ["GPT2"]}'), ("not a tinytf configuration",)),
    "a tokenizer that is none": (_writes("tokenizer.json", b"{}"), ("is not a tokenizer",)),
    "a tensor of another shape": (_change_config(d_ff=48), (".weight", "(32, 16)", "(48, 16)")),
    "too few layers in the file": (_change_config(n_layers=3), ("lacks blocks.2.",)),
    "too many layers in the file": (_change_config(n_layers=1), ("holds 'blocks.1.", "no place for")),
    "a lost tensor": (_change_weights(lambda t: t.pop("final_norm.bias")), ("lacks final_norm.bias",)),
    "a vocabulary too small": (_change_config(vocab_size=10), ("has 293 tokens", "takes 10")),
    "an unknown field": (_change_config(n_layer=2), ("no field 'n_layer'", "did you mean n_layers?")),
    "an unknown norm": (_change_config(norm="batchnorm"), ("'batchnorm'", "layernorm, rmsnorm")),
    "a word for a number": (_change_config(n_heads="two"), ("n_heads is 'two'",)),
    "heads that do not divide": (_change_config(n_heads=3, d_head=0), ("16 is not divisible by n_heads 3",)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_named_with_what_is_wrong(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(decoder, folder)
    do, said = DAMAGES[damage]
    do(folder)
    ran = tinytf("trace", SENTENCE, "-m", folder)
    assert is_a_clean_error(ran, 1)
    assert str(folder) in ran.err
    for words in said:
        assert words in ran.err


def test_a_file_is_no_model_folder(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder / "model.safetensors")
    assert is_a_clean_error(ran, 1)
    assert "is a file" in ran.err


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("command", [["trace"], ["attention"], ["attention", "--head", "L0"], ["trace", "--plain"]])
def test_weights_that_are_no_numbers_fail_the_check_and_nothing_else(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, bad: float, command: list[str], recwarn: pytest.WarningsRecorder
) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(decoder, folder)
    _change_weights(lambda tensors: tensors["embed.tokens.weight"].fill_(bad))(folder)
    for options in ([], ["--json"], ["--color", "always"]):
        ran = tinytf(*command, SENTENCE, "-m", folder, *options)
        assert (ran.status, ran.err) == (1, "")
        if "--json" in options:
            assert json.loads(ran.out)["check"]["holds"] is False
    assert [str(warning.message) for warning in recwarn] == []


def test_a_folder_through_a_link_or_a_relative_path_is_the_same_model(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    try:
        link.symlink_to(decoder, target_is_directory=True)
    except OSError:
        pytest.skip("no links here")
    monkeypatch.chdir(tmp_path)
    predictions = [
        json.loads(tinytf("trace", SENTENCE, "-m", name, "--json", "--pipeline").out)["predictions"]
        for name in (decoder, link, "link", "./link", "link/")
    ]
    assert predictions.count(predictions[0]) == 5


def test_a_folder_called_tiny_does_not_get_the_card_of_the_built_in_model(
    tinytf: Tinytf, decoder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(decoder, folder)
    ran = tinytf("info", folder, "--json")
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["card"] is None


# Files that cannot be written.


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("out.docx", "known: .txt .json .ndjson .csv .md .html .svg .png .pdf .tex .safetensors"),
        ("out", "no extension"),
        ("", "no extension"),
        ("nowhere/out.txt", "there is no folder"),
        ("folder.txt", "is a folder"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_any_work(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    (tmp_path / "folder.txt").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tinytf.loading.load", lambda *_, **__: pytest.fail("the model was opened"))
    ran = tinytf("trace", SENTENCE, "-o", name)
    assert is_a_clean_error(ran)
    assert said in ran.err


def test_an_extension_and_a_format_that_disagree_are_refused(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    ran = tinytf("trace", SENTENCE, "-m", decoder, "-o", tmp_path / "a.svg", "--json")
    assert is_a_clean_error(ran)
    assert "'a.svg' says svg" in ran.err or "a.svg" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [FULL, TORN, BROKEN])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "kept.json"
    path.write_text("what was there")
    failed = []
    while True:
        with failing(Disk(tmp_path, len(failed) + 1, kind)) as disk:
            ran = tinytf("tokens", SENTENCE, "-m", decoder, "-o", path)
        if not disk.failed:
            break
        failed.append(disk.failed)
        assert is_a_clean_error(ran, 1)
        assert "cannot write" in ran.err
        assert path.read_text() == "what was there"
        assert [p.name for p in tmp_path.iterdir()] == ["kept.json"]
    assert set(failed) == ({"write"} if kind == TORN else {"open", "write", "fsync", "rename"})
    assert path.read_text() != "what was there"


def test_there_are_no_tensors_in_tokens_or_info(tinytf: Tinytf, decoder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for arguments in (["tokens", SENTENCE, "-m", decoder], ["info", decoder]):
        ran = tinytf(*arguments, "-o", path)
        assert is_a_clean_error(ran)
        assert "write to a .json file instead" in ran.err
        assert not path.exists()


@pytest.mark.parametrize(
    ("command", "option", "nearest"),
    [("train", "--n-layerz", "--n-layers"), ("trace", "--laier", "--layer"), ("grad", "--derived", "--derive")],
)
def test_an_unknown_option_is_answered_with_the_nearest(
    tinytf: Tinytf, command: str, option: str, nearest: str
) -> None:
    ran = tinytf(command, "words", option, "3")
    assert ran.status == 2
    assert ran.err == f"tinytf: error: there is no option {option}\nhint: did you mean {nearest}?\n"


def test_on_a_terminal_a_long_hint_is_wrapped_between_words(tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    whole, wrapped = tinytf("info", "nope").err, tinytf("info", "nope", screen=True).err
    assert max(map(len, whole.splitlines())) > 80
    assert max(map(len, wrapped.splitlines())) < 60
    assert wrapped.split() == whole.split()


def test_the_explorer_is_refused_without_a_terminal(tinytf: Tinytf) -> None:
    found = tinytf("explore", "The cat sat")
    assert found.status == 2
    assert "explore needs a terminal" in found.err
    assert 'tinytf trace "The cat sat"' in found.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["trace", "x", "--txet", "y"], "it is an argument: tinytf trace TEXT"),
        (["trace", "x", "--tuxx", "y"], "see tinytf trace --help"),  # step has half of its letters
        (["trace", "x", "--stpe", "y"], "did you mean --step?"),
        (["tarce", "x"], "did you mean trace?"),
        (["atten", "x"], "did you mean attention?"),
        (["the", "cat", "sat", "--json"], "tinytf trace 'the cat sat' traces a text; tinytf --help lists the commands"),
    ],
)
def test_a_name_is_proposed_only_where_it_is_near(tinytf: Tinytf, arguments: list[str], hint: str) -> None:
    ran = tinytf(*arguments)
    assert ran.status == 2
    assert ran.err.splitlines()[1] == f"hint: {hint}"


@pytest.mark.parametrize("name", EVERY)
def test_a_missing_parameter_and_a_word_that_is_no_choice_are_answered_with_a_line_to_type(name: str) -> None:
    command = load(name)
    required = [parameter for parameter in command.params if parameter.required]
    if required:
        with pytest.raises(click.UsageError) as missing:
            command.make_context(name, [])
        named = required[0].make_metavar(click.Context(command)).strip("[].")
        assert named in explained(missing.value).hint
        assert "is missing" in explained(missing.value).message
    for option in command.params:
        if isinstance(option, click.Option) and isinstance(option.type, click.Choice) and option.nargs == 1:
            flag = max(option.opts, key=len)
            with pytest.raises(click.UsageError) as refused:
                option.process_value(click.Context(command, info_name=name), ("Paris",) if option.multiple else "Paris")
            failure = explained(refused.value)
            assert failure.message.startswith("'Paris' is not one of '")
            assert f"{flag} {option.type.choices[0]}" in failure.hint
