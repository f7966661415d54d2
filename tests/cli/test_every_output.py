"""No command writes over what it reads, whichever option names the output and whichever name leads to the file."""

import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from covering import sample
from driving import CORPUS, Tinytf, is_a_clean_error
from every_command import GIVEN, OPEN, SAE, TEXT
from prose import faults
from safetensors.torch import load_file, save_file

from tinytf.checkpoints.run import load_run
from tinytf_cli.main import EVERY, cli

WITHOUT_OUTPUT = ("config --completion", "explore", "mcp", "repl")
FOLDERS = {"export": "directory", "record": "out", "sweep": "out", "train": "out", "train-sae": "out"}
"""The option or argument that names a folder to write, of each command that has one."""
FILE_OPTIONS = {
    ("diff", "--report"): "reports",
    ("blame", "--tensor-types"): "tensor_types",
    ("trace", "--html"): "page",
}
"""Options that name a file to write, besides -o and --resume, each with its name in Python."""
OTHERS = ("corpus", "data")
"""Folders that nothing keeps: a sweep may make folders of its own in them."""
CONTINUED = {"ablate": (), "blame": (), "patch": ("--sweep", "heads")}
"""What else makes a command measure what ``--resume FILE`` keeps."""
READ = {
    "listed",
    "first",
    "second",
    "adapter",
    "corpus",
    "edit",
    "files",
    "imatrix",
    "names",
    "pairs",
    "reference",
    "texts",
    "versus",
    "recipe",
    "write_to",
    "run",
    "folder",
    "folders",
    "resume",
    "labels",
    "recording",
    "sae",
    "features",
    "roots",
    "stored",
    "train",
    "tuned",
    "source",
    "states",
}
"""Options and arguments of paths that are read, or that are none of a command's outputs."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, decoder: Path, llama: Path, tinytf: Tinytf) -> Path:
    """A folder with something of every kind that commands read; weights lie outside their model's folder."""
    world = tmp_path_factory.mktemp("world")
    shutil.copytree(decoder, world / "decoder")
    (world / "data").mkdir()
    shutil.copytree(llama, world / "m")
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.move(world / "m" / name, world / "data" / name)
        (world / "m" / name).symlink_to(f"../data/{name}")
    shutil.copytree(world / "m", world / "hub" / "snapshots" / "1", symlinks=True)
    (world / "hub" / "blobs").mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(world / "data" / name, world / "hub" / "blobs" / f"blob-{name}")
        (world / "hub" / "snapshots" / "1" / name).unlink()
        (world / "hub" / "snapshots" / "1" / name).symlink_to(f"../../blobs/blob-{name}")
    (world / "cached").symlink_to("hub/snapshots/1")
    (world / "corpus").mkdir()
    for name in ("book.txt", "corpus/a.txt", "corpus/b.md"):
        (world / name).write_text(CORPUS[0], "utf-8")
    (world / "logged.jsonl").write_text('{"ids": [5, 6, 7], "logprobs": [-1.0, -0.5]}\n', "utf-8")
    pair = {"clean": "The cat", "corrupt": "The dog", "answer": "sat", "versus": "saw"}
    (world / "pairs.jsonl").write_text(json.dumps(pair), "utf-8")
    (world / "lines.txt").write_text("The cat sat on the mat\nThe dog saw the cat\n", "utf-8")
    (world / "messages.json").write_text(json.dumps([{"role": "user", "content": TEXT}]), "utf-8")
    (world / "names.toml").write_text("", "utf-8")
    labelled = [{"text": f"{word} {animal}", "label": animal} for animal in ("cat", "dog") for word in ("The", "A")]
    (world / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled), "utf-8")
    (world / "student.py").write_text("import torch\nclass Student(torch.nn.Module):\n    pass\n", "utf-8")
    (world / "worked.toml").write_text('title = "one"\n[[given]]\nname = "a"\nvalue = [1.0]\n', "utf-8")
    recipe = 'tokenizer = "char"\nsteps = 2\nbatch = 2\nblock = 8\nwarmup = 0\neval_every = 2\nprobe_every = 1\n'
    model = "[model]\nd_model = 8\nn_layers = 1\nn_heads = 1\nd_ff = 8\ncontext = 16\n"
    (world / "recipe.toml").write_text(recipe + model, "utf-8")
    adapter = world / "adapter"
    adapter.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    weight = load_file(world / "data" / "model.safetensors")["model.layers.1.self_attn.q_proj.weight"]
    name = "base_model.model.model.layers.1.self_attn.q_proj"
    ones = {f"{name}.lora_A.weight": torch.ones(2, weight.shape[1]),
            f"{name}.lora_B.weight": torch.ones(weight.shape[0], 2)}  # fmt: skip
    save_file(ones, adapter / "adapter_model.safetensors")
    pairs = ({"positive": f"The {word} sat", "negative": f"The {word} saw"} for word in ("cat", "dog", "mat"))
    (world / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), "utf-8")
    assert load_run(world / "decoder").config.n_layers == 2
    before = Path.cwd()
    os.chdir(world)
    try:
        train = ("train", "book.txt", "--recipe", "recipe.toml", "--out", "run")
        assert tinytf(*train, "--steps", "3").status == 0
        assert tinytf("trace", TEXT, "-m", "m", "-o", "dump.safetensors").status == 0
        assert tinytf("train-sae", "book.txt", "corpus", *OPEN, *SAE, "--out", "sae").status == 0
        assert tinytf("steer", "pairs.jsonl", "-m", "m", "--at", "L1.out", "-o", "joy.safetensors").status == 0
    finally:
        os.chdir(before)
    np.savez(world / "other.npz", a=np.zeros(1))
    return world


@pytest.fixture
def world(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working directory; its run knows the copy of its text."""
    world = Path(shutil.copytree(made, tmp_path / "world", symlinks=True))
    corpus = world / "run" / "corpus.json"
    corpus.write_text(corpus.read_text("ascii").replace(str(made), str(world)), "ascii")
    monkeypatch.chdir(world)
    return world


def read_by(words: tuple[str, ...], world: Path) -> list[Path]:
    """Every file that a word of a command line leads to: named, in a named folder, or behind a link in one."""
    named = [world / word.rpartition("=3")[0] if word.endswith("=3") else world / word.removesuffix("=2").split(":")[0]
             for word in words]  # fmt: skip
    found = []
    for path in named:
        if path.is_dir():
            found += [inside for inside in sorted(path.rglob("*")) if inside.is_file()]
        elif path.is_file():
            found.append(path)
    if "--resume" in words:
        found.append(world / "book.txt")
    return list(dict.fromkeys(Path(os.path.realpath(path)) for path in found))


def contents(world: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in world.rglob("*") if path.is_file() and path.name != ".lock"}


def cases() -> list[tuple[str, tuple[str, ...]]]:
    return [(command, words) for command, lines in GIVEN.items() for words in lines]


OF_FEW_TESTS = ("certify", "diff --recorder", "pairs", "runs", "runs --film", "runs --follow", "state", "train")
"""Commands whose JSON hardly any other test looks at."""
FURTHER = (
    ("ablate", TEXT, *OPEN, "--through", "transformers", "--at", "model.layers.0.mlp"),
    ("diff", TEXT, *OPEN, "--through", "transformers", "--versus", "m"),
    ("runs", "--film", "run", "--versus", "run"),
    ("trace", TEXT, *OPEN, "--through", "transformers"),
)
"""Lines whose reports are of other kinds than those of GIVEN."""


@pytest.mark.parametrize(
    "words",
    [*(words for command, words in cases() if command in OF_FEW_TESTS and "--resume" not in words), *FURTHER],
    ids=lambda words: " ".join(words[:2]),
)
def test_the_json_of_a_command_is_as_its_schema_says(world: Path, tinytf: Tinytf, words: tuple[str, ...]) -> None:
    ran = tinytf(*words, "--json")  # which holds it
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["kind"]


NOT_READ_ALOUD = re.compile(r"[▀-▟▲▼⣀-⣿┌-╋←]")
DRAWN = (
    *(
        ("trace", TEXT, *OPEN, "--at", at)
        for at in ("L0.weights", "L0H0.weights[1]", "L0.out[-1]", "probs[-1]", "E[cat]")
    ),
    ("attention", TEXT, *OPEN, "--layer", "0"),
    ("trace", TEXT, *OPEN, "--block", "L0H0"),
    ("trace", TEXT, *OPEN, "--all"),
    ("trace", TEXT, *OPEN, "--adapter", "adapter", "--all"),
    ("learn", "7", "--text", TEXT, *OPEN),
    ("grad", TEXT, *OPEN, "--derive", "L0.masked[1]"),
)
"""Lines that draw maps, and rows of no token."""
FILES_OF_THEIR_OWN = ("config", "diff --recorder")
"""Commands that print text and make no picture."""
LONG = ("certify", "check", "sweep", "train")
"""Commands whose plain output the other lines have too, and that take their time."""


@sample(
    "words",
    [*(words for command, words in cases() if command not in LONG), *FURTHER, *DRAWN],
    every=2,
    ids=lambda words: " ".join(words[:2]),
)
def test_plain_output_names_every_row_and_has_no_signs_of_pictures(
    world: Path, tinytf: Tinytf, words: tuple[str, ...]
) -> None:
    for line in tinytf(*words, "--plain").out.splitlines():
        assert not re.match(r"(Row )?[:,;.] *[-+\d]", line), line
        assert not NOT_READ_ALOUD.search(line), line
        assert " of, " not in line, line  # a token that is a dot in the middle
        assert faults(line) == []


@sample(
    "words",
    [words for command, words in cases() if command not in (*LONG, *FILES_OF_THEIR_OWN)],
    every=4,
    ids=lambda words: " ".join(words[:2]),
)
def test_a_picture_of_any_command_has_a_title_and_a_description(
    world: Path, tinytf: Tinytf, words: tuple[str, ...]
) -> None:
    ran = tinytf(*words, "-o", "picture.svg")
    if not (world / "picture.svg").exists():
        assert is_a_clean_error(ran)  # a line that reads its files, and refuses them
        return
    root = ElementTree.parse(world / "picture.svg").getroot()
    title, description, *_ = root
    assert title.tag.endswith("}title")
    assert (title.text or "").startswith("tinytf ")
    assert description.tag.endswith("}desc")
    assert len((description.text or "").split()) >= 2


@pytest.mark.share(4)
@sample(("command", "words"), cases(), every=2, ids=lambda value: value if isinstance(value, str) else "")
def test_no_output_takes_the_place_of_what_a_command_reads(
    world: Path, tinytf: Tinytf, command: str, words: tuple[str, ...]
) -> None:
    before = contents(world)
    for number, read in enumerate(read_by(words, world)):
        alias = world / f"alias-{number}.{'safetensors' if read.suffix == '.safetensors' else 'txt'}"
        alias.symlink_to(read)
        for target in (read, alias):
            for new in ("new", "sweeps", "exported"):
                shutil.rmtree(new, ignore_errors=True)
            ran = tinytf(*words, "-o", target)
            said = f"{' '.join(words)} -o {target}: {ran.out}{ran.err}"
            assert ran.status == 2, said
            assert ran.data == b"", said
            assert re.search(r"^tinytf: error: [^\n]+\nhint: [^\n]+\n\Z", ran.err, re.MULTILINE), said
            changed = {path for path, data in before.items() if path.read_bytes() != data}
            assert not changed, f"{' '.join(words)} -o {target} changed {changed}"


@pytest.mark.parametrize("command", CONTINUED)
def test_no_measurement_is_kept_in_a_file_that_holds_anything_else(world: Path, tinytf: Tinytf, command: str) -> None:
    before = contents(world)
    words = GIVEN[command][0]
    for read in [*read_by(words, world), world / "book.txt", world / "other.npz"]:
        assert is_a_clean_error(tinytf(*words, *CONTINUED[command], "--resume", read))
        assert contents(world) == before


def test_types_take_the_place_of_nothing_that_is_read(world: Path, tinytf: Tinytf) -> None:
    before = contents(world)
    words = ("blame", "--texts", "lines.txt", "-m", "m", "--device", "cpu", "--budget", "1MB", "--tensor-types")
    for read in read_by(words, world):
        assert is_a_clean_error(tinytf(*words, read))
        assert contents(world) == before


@pytest.mark.parametrize("command", FOLDERS)
def test_no_folder_that_holds_anything_else_is_written_to(world: Path, tinytf: Tinytf, command: str) -> None:
    before = contents(world)
    words = GIVEN[command][0]
    old = words[2] if command == "export" else words[words.index("--out") + 1]
    kept = ("m", "run", "run/checkpoints", "hub/snapshots/1", "adapter")
    for folder in (*kept, *(OTHERS if command != "sweep" else ())):
        ran = tinytf(*(folder if word == old else word for word in words))
        assert is_a_clean_error(ran), f"{folder}: {ran.err}"
        after = contents(world)
        assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize("how", ["-f", "source", "TINYTF_CONFIG", "start-up"])
def test_no_line_of_a_session_replaces_a_file_that_began_it(
    world: Path, tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    own = world / "own.session"
    if how == "TINYTF_CONFIG":
        own.write_text('theme = "dark"\n', "ascii")
        monkeypatch.setenv("TINYTF_CONFIG", str(own))
    else:
        own.write_text("set precision 2\n", "ascii")
        monkeypatch.setattr("tinytf_cli.repl.startup.startup_path", lambda: own)
    own.chmod(0o600)
    world.chmod(0o700)
    began = {"-f": ("-f", own), "source": ("-c", "source own.session"), "start-up": ("--startup",)}.get(how, ())
    os.link(own, world / "linked.txt")
    (world / "named.json").symlink_to(own)
    before = contents(world)
    for name in ("own.session", "linked.txt", "named.json"):
        for line in (f"tokens The > {name}", f"save --force {name}", f"tokens The -o {name}"):
            ran = tinytf("repl", *began, "-c", "set width 60", "-c", line)
            assert ran.status == 1, line
            assert "is read by this command" in ran.err or " -o " in line, ran.err
            assert contents(world) == before, line


def test_every_option_of_a_path_is_known_to_this_file() -> None:
    paths = {
        (name, parameter.name)
        for name in EVERY
        for parameter in command_of(name).params
        if isinstance(parameter.type, click.Path)
    }
    outputs = {(name, "file") for name in GIVEN} | set(FOLDERS.items()) | {(name, "resume") for name in CONTINUED}
    outputs |= {(name, parameter) for (name, _), parameter in FILE_OPTIONS.items()}
    assert outputs <= paths
    assert {name for _, name in paths - outputs} <= READ
    assert set(EVERY) - set(GIVEN) == set(WITHOUT_OUTPUT)


def command_of(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found
