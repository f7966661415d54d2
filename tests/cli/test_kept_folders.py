"""Nothing is written into a folder that a command or another program keeps, by any option that names an output."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from covering import along
from driving import CORPUS, Tinytf, is_a_clean_error
from every_command import OPEN, SAE, TEXT, TRANSCODERS
from safetensors.torch import save_file
from test_every_output import CONTINUED, FILE_OPTIONS, FOLDERS, contents

from tinytf.kept import KINDS, kept_above
from tinytf.training import sweep as sweeps
from tinytf.training.data import cache

RECIPE = """tokenizer = "char"
steps = 2
batch = 2
block = 8
warmup = 0
eval_every = 2
[model]
d_model = 8
n_layers = 1
n_heads = 1
d_ff = 8
context = 16
"""
TRAINS = ("book.txt", "--recipe", "recipe.toml", "--out")
MADE = {
    "run": ("train", *TRAINS, "run"),
    "sweep": ("sweep", "recipe.toml", "book.txt", "--seeds", "2", "--jobs", "1", "--steps", "1", "--out", "sweep"),
    "recording": ("record", "book.txt", *OPEN, "--at", "L0.out", "--out", "recording"),
    "sae": ("train-sae", "book.txt", *OPEN, *SAE, "--out", "sae"),
    "transcoders": ("train-sae", "book.txt", *OPEN, *TRANSCODERS, "--out", "transcoders"),
    "exported": ("export", "m", "exported", "--to", "huggingface"),
}
"""The commands that make folders, each with the folder that it makes here."""
KEPT = {
    **dict.fromkeys(("run", "run/checkpoints/step-000002"), "metrics.jsonl"),
    "sweep": "sweep.json",
    "recording": "index.json",
    "sae": "sae_weights.safetensors",
    "transcoders": "layer_0.safetensors",
    "exported": "config.json",
    "adapter": "adapter_model.safetensors",
    "sparsify": "cfg.json",
    "gemma-scope": "params.npz",
    "gemma-scope-2": "params.safetensors",
    "hub/models--org--name": "refs/main",
    "ollama/models": "blobs/sha256-0",
    "cache/tinytf-tokens": "CACHEDIR.TAG",
}
"""Kept folders, each with a file of it."""
FILES = {
    "-o": ("tokens", "The", "-o", "{}.json"),
    "--html": ("trace", TEXT, *OPEN, "--html", "{}.html"),
    "--report": ("diff", TEXT, *OPEN, "--versus", "m", "--report", "{}.xml"),
    "--tensor-types": ("blame", "--texts", "lines.txt", *OPEN, "--budget", "1MB", "--tensor-types", "{}.txt"),
    "ablate --resume": ("ablate", "The cat sat", "--sweep", "heads", *OPEN, "--resume", "{}.ndjson"),
    "blame --resume": ("blame", "--texts", "lines.txt", *OPEN, "--versus", "tiny", "--resume", "{}.ndjson"),
    "patch --resume": ("patch", TEXT, "The dog sat", *OPEN, "--sweep", "heads", "--resume", "{}.ndjson"),
    "score --resume": ("score", "--lines", "lines.txt", *OPEN, "--resume", "{}.ndjson"),
    "a lens": ("lens", "--train", "book.txt", "--steps", "1", *OPEN, "-o", "{}.safetensors"),
    "a vector": ("steer", "pairs.jsonl", *OPEN, "--at", "L1.out", "-o", "{}.safetensors"),
    "a film": ("runs", "--film", "run", "-o", "{}.cast"),
    "> FILE": ("repl", "-c", "tokens The > {}.txt"),
    "save": ("repl", "-c", "save {}.session"),
}  # fmt: skip
"""A line for every way to name a file to write."""
INTO = {
    "train": ("train", *TRAINS, "{}"),
    "train --overwrite": ("train", *TRAINS, "{}", "--overwrite"),
    "train --dry-run": ("train", *TRAINS, "{}", "--dry-run"),
    "a branch": ("train", "--from", "run", "--at-step", "2", "--steps", "4", "--out", "{}"),
    "sweep": (*MADE["sweep"][:-1], "{}"),
    "record": (*MADE["recording"][:-1], "{}"),
    "train-sae": (*MADE["sae"][:-1], "{}"),
    "export": ("export", "m", "{}", "--to", "huggingface"),
}
"""A line for every way to name a folder to make."""


def _here(calls, jobs, on_begin, interrupted):
    """As ``sweeps._in_processes``, in this process, which has torch already."""
    for trial, arguments in calls:
        on_begin(trial)
        yield sweeps.Outcome(trial, *sweeps._run_with_signals_restored(*arguments))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, llama: Path, tinytf: Tinytf) -> Path:
    """A folder with kept folders of every kind, those of tinytf made by its commands."""
    world = tmp_path_factory.mktemp("kept")
    shutil.copytree(llama, world / "m")
    (world / "book.txt").write_text(f"{CORPUS[0]}\n\n{CORPUS[0]}", "utf-8")
    (world / "lines.txt").write_text("The cat sat\nThe dog saw\n", "utf-8")
    (world / "recipe.toml").write_text(RECIPE, "utf-8")
    pairs = ({"positive": f"The {word} sat", "negative": f"The {word} saw"} for word in ("cat", "dog", "mat"))
    (world / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        patch.setattr(sweeps, "_in_processes", _here)
        for words in MADE.values():
            ran = tinytf(*words)
            assert ran.status == 0, ran.err
        patch.setenv("TINYTF_CACHE", "cache")
        assert cache.cache_folder() is not None
    weights = {"W_enc": torch.ones(2, 2), "W_dec": torch.ones(2, 2), "b_enc": torch.ones(2), "b_dec": torch.ones(2)}
    for folder, names in {
        "adapter": ("adapter_config.json", "adapter_model.safetensors"),
        "sparsify": ("cfg.json", "sae.safetensors"),
        "gemma-scope-2": ("config.json", "params.safetensors"),
        "hub/models--org--name": ("refs/main", "snapshots/1/notes.md", "blobs/0.safetensors"),
        "ollama/models": ("manifests/registry/library/m/latest", "blobs/sha256-0"),
    }.items():
        for name in names:
            (world / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (world / folder / name).write_text("{}", "ascii")
            if name.endswith(".safetensors"):
                save_file(weights, world / folder / name)
    (world / "gemma-scope").mkdir()
    np.savez(world / "gemma-scope" / "params.npz", **{name: weight.numpy() for name, weight in weights.items()})
    for folder, name in KEPT.items():
        (world / folder / "a" / "b").mkdir(parents=True)
        (world / f"to-{folder.replace('/', '-')}").symlink_to(world / folder)
        (world / f"into-{folder.replace('/', '-')}").symlink_to(f"{folder}/a")
        (world / f"at-{folder.replace('/', '-')}").symlink_to(f"to-{folder.replace('/', '-')}/{name}")
    return world


@pytest.fixture(autouse=True)
def _there(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setattr(sweeps, "_in_processes", _here)


@pytest.mark.share(8)
@along({"kind": KEPT, "way": ("files", "folders")}, ids=str)
@pytest.mark.slow
def test_nothing_is_written_below_a_kept_folder(world: Path, tinytf: Tinytf, kind: str, way: str) -> None:
    before, link = contents(world), kind.replace("/", "-")
    for name, words in (FILES if way == "files" else INTO).items():
        for below in (f"{kind}/a/b/new", f"to-{link}/new", f"into-{link}/../new"):
            ran = tinytf(*(word.format(below) for word in words))
            assert is_a_clean_error(ran, 1 if words[0] == "repl" else 2), f"{name} {below}: {ran.err}"
            assert "lies in the folder of" in ran.err, f"{name} {below}: {ran.err}"
    assert contents(world) == before


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", KEPT)
def test_no_file_of_a_kept_folder_is_replaced_by_any_of_its_names(world: Path, tinytf: Tinytf, kind: str) -> None:
    before, link = contents(world), kind.replace("/", "-")
    for target in (f"{kind}/{KEPT[kind]}", f"at-{link}"):
        for words in (
            ("tokens", "The", "-o", target),
            ("repl", "-c", f"tokens The > {target}"),
            ("repl", "-c", f"save --force {target}"),
            ("steer", "pairs.jsonl", *OPEN, "--at", "L1.out", "-o", target),
        ):
            ran = tinytf(*words)
            assert is_a_clean_error(ran, 1 if words[0] == "repl" else 2), f"{words}: {ran.err}"
            assert contents(world) == before, words


def test_lines_of_a_file_write_into_no_kept_folder_that_they_are_given(world: Path, tinytf: Tinytf) -> None:
    (world / "lines.session").write_text("tokens The > run/new.txt\n", "utf-8")
    before = contents(world)
    ran = tinytf("repl", "-f", "lines.session", "--write-to", "run")
    assert ran.status == 1
    assert "lies in the folder of a training run" in ran.err
    assert contents(world) == before


def test_every_command_that_makes_folders_makes_one_that_is_recognised(world: Path) -> None:
    assert {words[0] for words in MADE.values()} == set(FOLDERS)
    for folder in (*MADE, *KEPT):
        assert kept_above(world / folder / "new") is not None, folder
    assert {kept_above(world / folder / "new")[1] for folder in KEPT} == set(KINDS)  # type: ignore[index]


def test_every_option_that_names_an_output_is_tried() -> None:
    options = {(words[0], word) for words in FILES.values() for word in words}
    assert FILE_OPTIONS.keys() | {(name, "--resume") for name in CONTINUED} <= options
    assert {words[0] for words in INTO.values()} == set(FOLDERS)


def test_who_keeps_a_folder_goes_on_in_it(tinytf: Tinytf, tmp_path: Path) -> None:
    for folder in ("run", "sweep", "recording"):
        shutil.copytree(folder, tmp_path / folder)
    run = ("train", "--out", tmp_path / "run", "--resume", "--steps", "4")
    trial = ("train", "--out", tmp_path / "sweep" / "seed-1", "--resume", "--steps", "2")
    for words in (run, trial, *((*MADE[name][:-1], tmp_path / name) for name in ("sweep", "recording"))):
        ran = tinytf(*words)
        assert ran.status == 0, f"{words}: {ran.err}"
    assert (tmp_path / "run" / "checkpoints" / "step-000004").is_dir()


@pytest.mark.parametrize(
    "names",
    [
        ("config.json",), ("index.json",), ("recipe.json",), ("tokenizer.json",), ("blobs", "snapshots"),
        ("CACHEDIR.TAG",), ("params.npz",), ("cfg.json",), ("sweep.json",), (".lock", "metrics.jsonl"),
    ],
    ids="+".join,
)  # fmt: skip
def test_a_folder_with_one_such_name_for_something_else_is_written_to(
    tinytf: Tinytf, tmp_path: Path, names: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    (home / "a" / "b").mkdir(parents=True)
    for name in names:
        (home / name).write_text('{"kind": "of something else"}', "ascii")
    assert tinytf("tokens", "The", "-o", home / "a" / "b" / "new.json").status == 0
    assert tinytf("tokens", "The", "-o", home / names[0] / ".." / "beside.json").status in (0, 2)
    assert tinytf("tokens", "The", "-o", home / "index.json").status == 0
    assert tinytf(*INTO["record"][:-1], home / "recorded").status == 0


def test_a_way_through_a_kept_folder_and_out_again_is_outside(tinytf: Tinytf, tmp_path: Path) -> None:
    os.symlink(Path("exported").absolute(), tmp_path / "link")
    shutil.copytree("exported", tmp_path / "exported")
    assert tinytf("tokens", "The", "-o", tmp_path / "exported" / "a" / ".." / ".." / "out.json").status == 0
    assert (tmp_path / "out.json").is_file()
    assert is_a_clean_error(tinytf("tokens", "The", "-o", tmp_path / "link" / "a" / ".." / "out.json"))


def test_a_sweep_marks_only_a_folder_that_it_makes(tinytf: Tinytf, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", "ascii")
    words = list(INTO["sweep"][:-1])
    words[words.index("--seeds") + 1] = "1"
    assert tinytf(*words, tmp_path).status == 0
    assert not (tmp_path / "sweep.json").exists()
    assert tinytf("tokens", "The", "-o", tmp_path / "new.json").status == 0
    assert is_a_clean_error(tinytf("tokens", "The", "-o", tmp_path / "run" / "new.json"))
