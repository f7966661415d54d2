"""Models that huggingface_hub, Ollama and LM Studio keep: found by name, listed, and said what they lack."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from architectures import enliven
from gguf_files import small_parts

from tinytf.checkpoints.gguf.header import Cursor
from tinytf.checkpoints.stores import HUB_CACHE, OLLAMA, STORES, Ollama
from tinytf.errors import CheckpointError, TinytfError, UsageError
from tinytf.models import AvailableModel, catalogue
from tinytf.sources import find_source

Put = Callable[..., Path]
HUB = ".cache/huggingface/hub"
_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, where no variable says where models are; the tests run in a folder inside it."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setattr(Ollama, "SHARED", str(tmp_path / "shared"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 as transformers writes it, without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "directory"
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=1))
    enliven(model, 3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in a GGUF file."""
    return small_parts().write(tmp_path_factory.mktemp("models") / "file.gguf")


@pytest.fixture
def cached(home: Path, directory: Path) -> Put:
    """Put a directory of transformers into the cache of the hub; some of its files with ``only``."""

    def put(name: str, commit: str = "abc", root: str = HUB, main: str = "", only: str = "*") -> Path:
        repository = home / root / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for path in directory.glob(only):
            shutil.copy(path, snapshot)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(main or commit, "utf-8")
        return snapshot

    return put


@pytest.fixture
def pulled(home: Path, file: Path) -> Put:
    """Put the GGUF file into Ollama's folder; more layers with ``more``. The answer is the blob."""

    def put(where: str, root: str = ".ollama/models", more: tuple[str, ...] = (), digest: str = "ab" * 32) -> Path:
        manifest, blob = home / root / "manifests" / where, home / root / "blobs" / f"sha256-{digest}"
        kinds = ("template", "model", "license", *more)
        layers = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"} for kind in kinds]
        for path in (manifest, blob):
            path.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}), "utf-8")
        shutil.copy(file, blob)
        return blob

    return put


def opened_at(name: str) -> Path:
    """The files that a name means, by a source whose configuration can be read, and which says where they are."""
    source = find_source(name)
    assert source.config().n_layers == 1
    assert source.where == str(source.path)
    return source.path


def refused(name: str) -> TinytfError:
    with pytest.raises(TinytfError) as caught:
        find_source(name).config()
    assert "\n" not in caught.value.message + caught.value.hint
    return caught.value


def listed(*places: str) -> dict[str, AvailableModel]:
    entries = catalogue(Path()).entries
    return {entry.name: entry for entry in entries if entry.place in places}


# The Hugging Face cache


@pytest.mark.parametrize("name", ["gpt2", "some/gpt-2.x"])
def test_a_name_is_looked_up_in_the_cache(cached: Put, name: str) -> None:
    snapshot = cached(name)
    assert opened_at(name) == snapshot
    assert find_source(name).name == name


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"HF_HOME": "hf"}, "hf/hub"),
        ({"HF_HUB_CACHE": "hubs", "HF_HOME": "hf"}, "hubs"),
        ({"HUGGINGFACE_HUB_CACHE": "old"}, "old"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/huggingface/hub"),
        ({"HF_HOME": ""}, HUB),
    ],
)
def test_the_variables_of_the_hub_say_where_the_cache_is(
    home: Path, cached: Put, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], root: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(home / value) if value else "")
    snapshot = cached("some/model", root=root)
    assert opened_at("some/model") == snapshot
    monkeypatch.setenv("HF_HUB_CACHE", "~/hubs")
    assert home / "hubs" == HUB_CACHE.folder


def test_the_revision_that_main_names_is_opened_unless_it_lacks_its_weights(cached: Put) -> None:
    old = cached("some/model", "aaa")
    new = cached("some/model", "bbb")
    assert opened_at("some/model") == new
    assert opened_at("some/model@aaa") == old
    cached("some/model", "ccc", only="config.json")
    os.utime(old, (1, 1))
    assert opened_at("some/model") == new
    assert refused("some/model@ccc").message.startswith("some/model has no weights in the cache, ")


def test_links_that_lead_nowhere_are_missing_files(cached: Put) -> None:
    snapshot = cached("some/model")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/gone")
    error = refused("some/model")
    assert isinstance(error, CheckpointError)
    assert str(snapshot) in error.message
    assert error.hint == "hub:some/model fetches what is missing"


def test_a_gguf_file_of_a_repository_needs_its_name_where_there_are_several(cached: Put, file: Path) -> None:
    snapshot = cached("some/files", only="none")
    for name in ("one-Q8_0.gguf", "mmproj-one.gguf"):
        shutil.copy(file, snapshot / name)
    assert opened_at("some/files") == opened_at("some/files/one-Q8_0.gguf") == snapshot / "one-Q8_0.gguf"
    shutil.copy(file, snapshot / "one-Q4_0-00001-of-00002.gguf")
    shutil.copy(file, snapshot / "one-Q4_0-00002-of-00002.gguf")
    error = refused("some/files")
    assert error.message == "some/files holds 2 models"
    assert error.hint == "known: some/files/one-Q4_0-00001-of-00002.gguf, some/files/one-Q8_0.gguf"
    assert refused("some/files/one-Q8.gguf").hint == "did you mean some/files/one-Q8_0.gguf?"
    assert sorted(listed("hub cache")) == ["some/files/one-Q4_0-00001-of-00002.gguf", "some/files/one-Q8_0.gguf"]


def test_a_path_wins_over_a_name_and_a_built_in_name_over_both(cached: Put, directory: Path) -> None:
    snapshots = {name: cached(name) for name in ("tiny", "some/model")}
    shutil.copytree(directory, "some/model")
    shutil.copytree(directory, "tiny")
    assert opened_at("some/model") == Path("some/model")
    assert find_source("tiny").where == "built in"
    assert opened_at("./tiny") == Path("tiny")
    assert set(listed("hub cache")) == {str(path) for path in snapshots.values()}


@pytest.mark.parametrize("name", ["gpt2", "some/model", "some/model@v1"])
def test_what_is_not_in_the_cache_is_offered_and_not_fetched(
    home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinytf.sources.fetch", lambda name: pytest.fail("it was fetched"))
    error = refused(name)
    assert isinstance(error, UsageError)
    assert error.message == f"there is no model {name!r}"
    assert error.hint.endswith(f" hub:{name} fetches it from the Hugging Face hub")


@pytest.mark.parametrize("name", ["./some/model", "a/b/c", "some/../model", "model.gguf", "", "a\0b", "some--model"])
def test_what_cannot_be_a_name_of_the_hub_is_not_offered(home: Path, name: str) -> None:
    assert "hub:" not in refused(name).hint.replace("hub:ORG/NAME", "")


def test_the_nearest_name_of_the_cache_is_suggested(cached: Put) -> None:
    cached("some/model")
    assert refused("some/modle").hint.startswith("did you mean some/model? hub:some/modle fetches it ")


def test_hub_opens_what_is_cached_where_its_package_is_missing(cached: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    snapshot = cached("some/model")
    assert opened_at("hub:some/model") == snapshot
    assert refused("hub:some/other").hint == 'pip install "tinytf[hub]"'


# Ollama


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("registry.ollama.ai/library/llama3.2/latest", ("ollama:llama3.2:latest", "ollama:llama3.2")),
        ("registry.ollama.ai/library/llama3.2/1b-q4", ("ollama:llama3.2:1b-q4",)),
        ("registry.ollama.ai/someone/own/latest", ("ollama:someone/own:latest", "ollama:someone/own")),
        ("hf.co/org/NAME-GGUF/Q4_K_M", ("ollama:hf.co/org/NAME-GGUF:Q4_K_M",)),
    ],
)
@pytest.mark.parametrize("root", [".ollama/models", "shared", "elsewhere"])
def test_a_model_of_ollama_is_opened_by_the_name_that_ollama_gives_it(
    home: Path, pulled: Put, monkeypatch: pytest.MonkeyPatch, where: str, names: tuple[str, ...], root: str
) -> None:
    if root == "elsewhere":
        monkeypatch.setenv("OLLAMA_MODELS", str(home / root))
    blob = pulled(where, root)
    for name in names:
        assert opened_at(name) == blob
    entry = listed("Ollama")[names[0]]
    assert (entry.opens, entry.family, entry.bytes) == (True, "GGUF", blob.stat().st_size)


def test_what_a_model_of_ollama_lacks_is_said(home: Path, pulled: Put) -> None:
    library = "registry.ollama.ai/library"
    pulled(f"{library}/tuned/latest", more=("adapter",))
    pulled(f"{library}/eyes/latest", more=("projector",))
    pulled(f"{library}/two/latest", more=("model",))
    pulled(f"{library}/gone/latest", digest="cd" * 32).unlink()
    pulled(f"{library}/odd/latest", digest="../../../odd")
    for name, data in (("torn", "{"), ("flat", "[]"), ("bare", "{}")):
        (home / ".ollama/models/manifests" / library / name).mkdir()
        (home / ".ollama/models/manifests" / library / name / "latest").write_text(data, "utf-8")
    assert find_source("ollama:eyes").config().n_layers == 1
    for name, words in {
        "tuned": "has a LoRA adapter", "two": "has 2 GGUF files", "gone": "lacks its file",
        "odd": "a digest that is no", "torn": "is not JSON", "flat": "not a JSON object", "bare": "has no layers",
    }.items():  # fmt: skip
        assert words in refused(f"ollama:{name}").message
        assert words in listed("Ollama")[f"ollama:{name}:latest"].problem
    assert refused("ollama:gone").hint == "ollama pull gone fetches it"


@pytest.mark.parametrize("name", ["", ":", "..", "../../x", "a/b/c/d", "llama4", "tinny/../../../x:y", "a\0b"])
def test_a_name_that_ollama_does_not_have(home: Path, pulled: Put, name: str) -> None:
    assert refused(f"ollama:{name}").hint == "nothing of Ollama was found on this disk"
    pulled("registry.ollama.ai/library/llama3/latest")
    assert isinstance(refused(f"ollama:{name}"), UsageError)
    assert refused("ollama:llama4").hint == "did you mean ollama:llama3:latest?"


# LM Studio


@pytest.mark.parametrize("root", [".lmstudio/models", ".cache/lm-studio/models"])
def test_a_model_of_lm_studio_is_opened_by_its_folders(home: Path, file: Path, directory: Path, root: str) -> None:
    folder = home / root / "org" / "one"
    folder.mkdir(parents=True)
    shutil.copy(file, folder / "a.gguf")
    shutil.copytree(directory, home / root / "org" / "whole")
    assert opened_at("lmstudio:org/one") == opened_at("lmstudio:org/one/a.gguf") == folder / "a.gguf"
    assert opened_at("lmstudio:org/whole") == home / root / "org" / "whole"
    shutil.copy(file, folder / "b c.gguf")
    assert refused("lmstudio:org/one").hint == "known: lmstudio:org/one/a.gguf, lmstudio:org/one/b c.gguf"
    assert opened_at("lmstudio:org/one/b c.gguf") == folder / "b c.gguf"
    names = ["lmstudio:org/one/a.gguf", "lmstudio:org/one/b c.gguf", "lmstudio:org/whole"]
    assert list(listed("LM Studio")) == names
    assert all(entry.opens for entry in listed("LM Studio").values())


@pytest.mark.parametrize("name", ["", "org", "org/", "/one", "../org", "org/..", "org/one/../../x", "org/none"])
def test_a_name_that_lm_studio_does_not_have(home: Path, file: Path, name: str) -> None:
    (home / ".lmstudio/models/org/one").mkdir(parents=True)
    shutil.copy(file, home / ".lmstudio/models/org/one")
    assert isinstance(refused(f"lmstudio:{name}"), UsageError)


# Listing


def test_one_broken_entry_hides_no_other(home: Path, cached: Put, pulled: Put, directory: Path) -> None:
    cached("some/model")
    cached("some/tokenizer", only="config.json")
    cached("some/nothing", only="none")
    (cached("some/broken") / "config.json").write_bytes(b"\xff\xfe")
    (cached("some/short") / "model.safetensors").write_bytes(b"\x08")
    (cached("some/strange") / "config.json").write_text('{"model_type": "gpt2", "n_layer": {}}', "utf-8")
    (home / HUB / "models--some--loop").symlink_to("models--some--loop")
    (home / HUB / "models--some--file").write_text("")
    (home / HUB / "models--some--refs" / "refs" / "main").mkdir(parents=True)
    blob = pulled("registry.ollama.ai/library/short/latest")
    blob.write_bytes(blob.read_bytes()[:100])
    (home / ".ollama/models/manifests/registry.ollama.ai/library/.DS_Store").write_text("")
    found = listed("hub cache", "Ollama")
    assert {name for name, entry in found.items() if entry.opens} == {"some/model"}
    assert {name: entry.problem.partition(" in the cache")[0] for name, entry in found.items() if entry.problem} == {
        **{name: found[name].problem for name in ("some/broken", "some/short", "some/strange", "ollama:short:latest")},
        "some/tokenizer": "some/tokenizer has no weights",
        "some/nothing": "some/nothing has no config.json",
    }


@pytest.mark.parametrize("data", [b"\xff\xfe\xc3(", b"", b"\x00", b"\x1b[2J", b"../../..", "✗".encode("utf-16")])
def test_a_commit_that_is_no_text_hides_no_other_model(home: Path, cached: Put, data: bytes) -> None:
    cached("some/model")
    cached("some/damaged")
    (home / HUB / "models--some--damaged" / "refs" / "main").write_bytes(data)
    found = listed("hub cache")
    assert found["some/model"].opens
    assert "\x1b" not in found["some/damaged"].problem


def test_a_list_reads_the_sizes_of_a_gguf_file_and_not_its_vocabulary(
    home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(file, "a.gguf")
    other = small_parts()
    other.keys["tokenizer.ggml.tokens"][5] = "other"
    other.write(Path("b.gguf"))
    data = file.read_bytes()
    Path("c.gguf").write_bytes(data[: data.index(b"tokenizer.ggml.tokens") + 2450])
    config = find_source("a.gguf").config()
    decoded = []
    whole = Cursor.strings
    monkeypatch.setattr(Cursor, "strings", lambda *of: decoded.append(of[1]) or whole(*of))
    for _ in range(2):  # what is remembered of the first time changes nothing
        found = listed("folder")
        assert [entry.opens for entry in found.values()] == [True, True, False]
        assert found["a.gguf"].config == found["b.gguf"].config == config
        assert "beyond the end" in found["c.gguf"].problem
    assert max(decoded) == 1


def test_a_split_file_is_listed_once_with_the_bytes_of_all_its_parts(home: Path, file: Path) -> None:
    for place in (1, 2):
        shutil.copy(file, f"m-0000{place}-of-00002.gguf")
    (entry,) = listed("folder").values()
    assert entry.problem == ""
    assert (entry.name, entry.bytes) == ("m-00001-of-00002.gguf", 2 * file.stat().st_size)


def test_the_names_of_every_store_are_found_without_reading_a_model(cached: Put, pulled: Put, home: Path) -> None:
    (cached("some/model") / "config.json").write_bytes(b"")
    pulled("registry.ollama.ai/library/torn/latest").write_bytes(b"")
    assert [name for store in STORES for name in store.names()] == ["some/model", "ollama:torn:latest"]
    assert list(OLLAMA.names()) == ["ollama:torn:latest"]
