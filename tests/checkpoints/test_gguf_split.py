"""A model in several GGUF files: whichever part is given, all are read; what is missing is named."""

from pathlib import Path

import pytest
import torch
from gguf_files import Parts, model_and_parts, small_parts

from tinytf.checkpoints.gguf import gguf_tokenizer, read_gguf
from tinytf.errors import CheckpointError


def write_split(folder: Path, whole: Parts, count: int = 3, **changed: dict[str, object]) -> list[Path]:
    """As llama-gguf-split writes them: the metadata in the first, the tensors one after the other in all."""
    names = list(whole.tensors)
    paths = []
    for place in range(count):
        keys = whole.keys if place == 0 else {"general.architecture": whole.keys["general.architecture"]}
        keys = keys | {"split.no": place, "split.count": count, "split.tensors.count": len(names)}
        keys |= changed.get(f"part_{place}", {})
        some = names[place * len(names) // count : (place + 1) * len(names) // count]
        part = Parts(keys, {name: whole.tensors[name] for name in some})
        paths.append(part.write(folder / f"a-{place + 1:05}-of-{count:05}.gguf"))
    return paths


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    return caught.value.message


def test_any_part_opens_the_model(tmp_path):
    whole = small_parts()
    expected = read_gguf(whole.write(tmp_path / "whole.gguf")).load().transformer.state_dict()
    for path in write_split(tmp_path, whole):
        found = read_gguf(path).load().transformer.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        assert gguf_tokenizer(path).encode("the cat").ids


def test_missing_parts_are_named(tmp_path):
    paths = write_split(tmp_path, model_and_parts("llama")[1], count=8)
    paths[1].unlink()
    assert refused(paths[7]) == (f"{paths[7]} is one of 8 parts of a model, and a-00002-of-00008.gguf is not beside it")
    for path in paths[1:7]:
        path.unlink(missing_ok=True)
    assert "a-00005-of-00008.gguf and 2 more are not beside it" in refused(paths[0])


def test_a_part_with_another_name_says_what_it_is(tmp_path):
    path = write_split(tmp_path, small_parts())[1]
    path = path.rename(tmp_path / "renamed.gguf")
    assert "is one of 3 parts of a model, and its name does not end in -NNNNN-of-00003.gguf" in refused(path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"part_1": {"split.no": 2}}, "a-00002-of-00003.gguf says that it is part 3 of 3"),
        ({"part_2": {"split.count": 4}}, "a-00003-of-00003.gguf says that it is part 3 of 4"),
        ({"part_0": {"split.tensors.count": 13}}, "says that there are 13 tensors, and its parts hold 12"),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path, changed, said):
    assert said in refused(write_split(tmp_path, small_parts(), **changed)[0])


def test_a_tensor_in_two_parts(tmp_path):
    whole = small_parts()
    paths = write_split(tmp_path, whole)
    names = list(whole.tensors)
    keys = {"general.architecture": "llama", "split.no": 2, "split.count": 3}
    Parts(keys, {names[0]: whole.tensors[names[0]]}).write(paths[2])
    assert f"holds {names[0]!r}, which a-00001-of-00003.gguf holds too" in refused(paths[0])
