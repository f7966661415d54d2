"""Weights that stay in their file give the numbers of weights in memory, in every family, and take no memory."""

from types import SimpleNamespace

import pytest
import torch
from architectures import facing
from gguf_conversion import CONVERSIONS, V, converted
from reference import FAMILIES, saved

import tinytf
from tinytf import in_file, memory
from tinytf.checkpoints import load
from tinytf.checkpoints.gguf import read_gguf
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.checkpoints.load import Checkpoint
from tinytf.errors import CheckpointError, UsageError
from tinytf.in_file import InFile
from tinytf.model.transformer import Transformer


@pytest.fixture(autouse=True)
def small_weights_stay_too(monkeypatch):
    monkeypatch.setattr(load, "_SMALL", 64)


def kept(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Transformer:
    model = checkpoint.load(dtype, keep=True).transformer
    assert any(isinstance(parameter, InFile) for parameter in model.parameters())
    return model


def states(model: Transformer) -> torch.Tensor:
    ids = torch.arange(2 * 9).reshape(2, 9) * 5 % (min(V, model.config.vocab_size) - 3)
    with torch.inference_mode():
        return facing(model)(ids)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_folder_gives_what_it_gives_in_memory(family, dtype):
    checkpoint = read_directory(saved(family))
    torch.testing.assert_close(states(kept(checkpoint, dtype)), states(checkpoint.load(dtype).transformer))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_that_is_read_a_few_rows_at_a_time_gives_the_same(family, monkeypatch):
    monkeypatch.setattr(in_file, "BLOCK", 256)
    checkpoint = read_directory(saved(family))
    by_rows, expected = states(kept(checkpoint, torch.float32)), states(checkpoint.load().transformer)
    assert (by_rows - expected).abs().max() <= 2e-5 * expected.abs().max()  # blocks are summed in another order


@pytest.mark.share(12)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_gguf_file_gives_what_it_gives_in_memory(tmp_path, name):
    checkpoint = read_gguf(converted(CONVERSIONS[name])[1].write(tmp_path / "a.gguf"))
    torch.testing.assert_close(states(kept(checkpoint)), states(checkpoint.load().transformer))


def test_a_backward_pass_has_the_same_gradients():
    checkpoint = read_directory(saved("llama"))
    gradients = []
    for model in (kept(checkpoint), checkpoint.load().transformer):
        x = model.embed(torch.tensor([[3, 5, 8]])).detach().requires_grad_()
        model.blocks[1](model.blocks[0](x)).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_a_weight_is_read_at_each_use_and_none_is_held():
    reads = []
    weight = InFile(lambda: reads.append(0) or torch.ones(4, 3), torch.empty(4, 3, device="meta"))
    turned = weight.t()
    assert isinstance(turned, InFile), "a view of all of it is read when it is used"
    assert not reads
    assert (torch.ones(1, 3) @ turned).tolist() == [[3.0] * 4]
    assert len(reads) == 1
    assert isinstance(weight[1], InFile)
    assert (weight[1].tolist(), weight[1].numpy().sum()) == ([1.0] * 3, 3)
    assert len(reads) == 3
    assert repr(weight) == "InFile((4, 3), torch.float32)"
    assert len(reads) == 3


@pytest.mark.parametrize("use_grad", [False, True])
def test_a_lookup_reads_its_rows_and_a_product_a_block_at_a_time(use_grad: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(in_file, "BLOCK", 4 * 3 * 16)  # four rows
    numbers, reads = torch.randn(50, 12, generator=torch.Generator().manual_seed(0)), []

    def rows(first: int, last: int) -> torch.Tensor:
        reads.append(last - first)
        return numbers[first:last].clone()

    def whole() -> torch.Tensor:
        raise AssertionError("the whole matrix is read")

    kept = torch.nn.Parameter(InFile(whole, torch.empty(50, 12, device="meta"), rows), requires_grad=False)
    x, bias = torch.ones(2, 3, 12, requires_grad=use_grad), torch.arange(50.0)
    ids = torch.tensor([[7, -1, 7], [0, 3, 7]])
    asked = {
        "lookup": lambda w: torch.nn.functional.embedding(ids.abs(), w),
        "rows": lambda w: w[ids],
        "row": lambda w: w[-2],
        "product": lambda w: torch.nn.functional.linear(x, w),
        "with bias": lambda w: torch.nn.functional.linear(x, w, bias),
        "plain product": lambda w: x[0] @ w.t(),
        "sum": torch.sum,
    }
    for name, ask in asked.items():
        reads.clear()
        with torch.set_grad_enabled(use_grad):
            torch.testing.assert_close(ask(kept) + 0, ask(numbers), msg=name)
        assert reads, name
        assert max(reads) == (1 if name in ("lookup", "rows", "row") else 4), name
        if name in ("lookup", "rows"):
            assert len(reads) == 4, "each row is read once"


@pytest.mark.parametrize("number", [50, -51])
def test_a_row_beyond_a_matrix_in_its_file_is_an_error(number: int) -> None:
    numbers = torch.ones(50, 12)
    kept = InFile(lambda: numbers, torch.empty(50, 12, device="meta"), lambda first, last: numbers[first:last])
    with pytest.raises(IndexError):
        kept[torch.tensor([0, number])]


@pytest.mark.parametrize("kind", ["qwen3moe in a GGUF file", "qwen3 moe", "gpt-oss"])
def test_of_experts_only_the_chosen_ones_are_read(tmp_path, monkeypatch, kind):
    path = tmp_path / "a.gguf"
    in_gguf = kind.endswith("GGUF file")
    checkpoint = (
        read_gguf(converted(CONVERSIONS["qwen3moe"])[1].write(path)) if in_gguf else read_directory(saved(kind))
    )
    axes, experts = [], []
    read, read_expert = Checkpoint._read, Checkpoint._read_expert

    def watched(self, parameter, places, like):
        axes.append(like.dim())
        return read(self, parameter, places, like)

    def watched_expert(self, parameter, places, like, number):
        experts.append((parameter, number))
        return read_expert(self, parameter, places, like, number)

    monkeypatch.setattr(Checkpoint, "_read", watched)
    monkeypatch.setattr(Checkpoint, "_read_expert", watched_expert)
    model = kept(checkpoint)
    axes.clear()
    with torch.inference_mode():
        model(torch.tensor([[3]]))
    assert 3 not in axes, "never the matrices of all experts"
    assert len(experts) == len(set(experts))
    per_matrix = len(experts) / len({parameter for parameter, _ in experts})
    assert per_matrix == model.config.experts_per_token < model.config.experts


def test_what_stays_in_a_file_is_not_written_to():
    weight = InFile(lambda: torch.ones(2, 2), torch.empty(2, 2, device="meta"))
    for part in (weight, weight[0], weight.t(), weight.split(1)[0], weight.unbind()[1]):
        with pytest.raises(UsageError, match="cannot be changed"):
            part.mul_(2)
    with pytest.raises(UsageError, match="cannot be changed"):
        weight[0, 1] = 3.0


def test_a_parameter_that_is_set_to_another_number_counts(tmp_path):
    tinytf.load("tiny").export(tmp_path / "tiny")
    models = [tinytf.load(str(tmp_path / "tiny"), keep_quantized=keep) for keep in (True, False)]
    before = [model.trace("The cat sat")["logits"] for model in models]
    after = [model.with_numbers({"L0.W_Q[0,3]": 2.0}).trace("The cat sat")["logits"] for model in models]
    torch.testing.assert_close(*before)
    torch.testing.assert_close(*after)
    assert not torch.allclose(before[0], after[0])


@pytest.mark.parametrize("how", ["replaced", "written to", "removed"])
def test_a_file_that_changes_under_a_model_is_named(tmp_path, how):
    for path in saved("llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model, weights = kept(read_directory(tmp_path)), tmp_path / "model.safetensors"
    if how == "removed":
        weights.unlink()
    elif how == "replaced":
        other = tmp_path / "other"
        other.write_bytes(weights.read_bytes())
        other.replace(weights)
    else:
        with weights.open("ab") as file:
            file.write(b" ")
    with pytest.raises(CheckpointError, match=r"model\.safetensors was changed while its model was open"):
        states(model)


def test_where_the_memory_has_no_room_they_stay_by_themselves(monkeypatch):
    monkeypatch.setattr(load, "free_bytes", lambda device: 100)
    monkeypatch.setattr(load, "UNASKED", 100)
    loaded = read_directory(saved("llama")).load(torch.bfloat16)
    assert any("stay in their file" in note for note in loaded.notes)
    assert any(isinstance(parameter, InFile) for parameter in loaded.transformer.parameters())


def test_what_a_mapped_file_has_takes_no_memory():
    weights = read_directory(saved("llama")).weights
    assert weights.takes(torch.float32) == 0
    assert weights.takes(torch.bfloat16) == sum(torch.Size(shape).numel() for shape in weights.shapes.values()) * 2


def test_no_built_in_model_stays_in_its_file():
    import tinytf

    with pytest.raises(UsageError, match="tiny is not a file of transformers"):
        tinytf.load("tiny", keep_quantized=True)


GROUPS = {
    "0::/a/b": ("", "memory.max", "memory.current", ""),
    "7:cpu:/c\n4:memory:/a/b": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}


@pytest.mark.parametrize("own", GROUPS)
def test_the_free_memory_is_within_the_limits_of_the_control_groups(monkeypatch, tmp_path, own):
    """A group has 1,000 bytes, of which it uses 700, and 250 of these are pages of files; the one above has more."""
    tree, limit, usage, prefix = GROUPS[own]
    root = tmp_path / tree
    for folder, most in ((root / "a" / "b", "1000"), (root / "a", "max"), (root, "5000")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{most}\n")
        (folder / usage).write_text("700\n")
        (folder / "memory.stat").write_text(f"anon 450\n{prefix}inactive_file 200\n{prefix}active_file 50\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    assert list(memory._below_group_limits()) == [550, 4550]


def test_the_free_memory_is_within_the_limit_of_the_process(monkeypatch):
    import psutil

    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 2000))
    monkeypatch.setattr(psutil.Process, "memory_info", lambda self: SimpleNamespace(vms=400))
    assert memory.free_bytes(torch.device("cpu")) == 600
