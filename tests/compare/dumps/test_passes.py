"""A generation with a cache, pass by pass, as transformers runs it: sound, and with the mistakes of a cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from architectures import asked
from reference import pair, saved
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.passes import is_passes, open_any
from tinytf.errors import DumpError
from tinytf.loading import Model

IDS, PROMPT = [3, 14, 15, 9, 2, 6, 5, 8], 5
Passes = list[dict[str, Any]]
_UPDATE = DynamicLayer.update


def generated(family: str, given: Callable[[int], dict[str, Any]] = lambda at: {}, **broken: Any) -> Passes:
    """What every module returns in each pass; ``given`` are arguments of a later one, ``broken`` patches the cache."""
    theirs, cache, passes = pair(family).theirs, DynamicCache(), []
    with torch.no_grad(), mock.patch.object(DynamicLayer, "update", **broken or {"new": _UPDATE}):
        for start, end in ((0, PROMPT), *((at, at + 1) for at in range(PROMPT, len(IDS)))):
            kept: dict[str, Any] = {"input_ids": np.array(IDS[start:end])}

            def keep(name: str, made: Any, kept: dict[str, Any] = kept) -> None:
                made = made[0] if isinstance(made, tuple) else made
                if isinstance(made, Tensor):
                    kept[name] = made.float().numpy()

            hooks = [
                module.register_forward_hook(lambda _, __, made, name=name, keep=keep: keep(name, made))
                for name, module in theirs.named_modules()
                if name
            ]
            arguments = given(start) if start else {}
            kept["logits"] = theirs(
                input_ids=torch.tensor([IDS[start:end]]), past_key_values=cache, use_cache=True, **arguments
            ).logits.numpy()
            for hook in hooks:
                hook.remove()
            passes.append(kept)
    return passes


def written(passes: Passes, folder: Path) -> Path:
    folder.mkdir()
    for number, kept in enumerate(passes):
        np.savez(folder / f"step{number}.npz", **kept)
    return folder


def model_of(family: str) -> Model:
    return asked(read_directory(saved(family)).load().transformer)


def compared(family: str, passes: Passes, path: Path) -> Difference:
    return model_of(family).diff(None, open_any(written(passes, path / "passes")))


def last_again(which: int) -> Any:
    """A cache that returns the last key (0) or value (1) of the earlier passes in place of a new one."""

    def update(layer: Any, keys: Tensor, values: Tensor, *more: Any, **settings: Any) -> tuple[Tensor, ...]:
        both = list(_UPDATE(layer, keys, values, *more, **settings))
        if keys.shape[-2] == 1:
            both[which] = torch.cat((both[which][..., :-1, :], both[which][..., -2:-1, :]), dim=-2)
        return tuple(both)

    return update


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma 3"])
def test_a_sound_generation_is_the_whole_text(family: str, tmp_path: Path) -> None:
    found = compared(family, generated(family), tmp_path)
    assert found.first is None
    assert found.passes == (0, 5, 6, 7)
    assert [position.index for position in found.positions] == list(range(len(IDS)))
    assert len(found.steps) > 10
    assert all("put together from 4 passes" in step.note for step in found.steps if step.layer is not None)


_LATER = f"from token {PROMPT} on "


@pytest.mark.share(16)
@pytest.mark.parametrize(
    ("family", "given", "broken", "step", "words"),
    [
        ("llama", lambda at: {"position_ids": torch.tensor([[at + 1]])}, None, "L0.q_rot and L0.k_rot",
         f"{_LATER}positions are 1 too large"),
        ("llama", lambda at: {"position_ids": torch.tensor([[at - PROMPT]])}, None, "L0.q_rot and L0.k_rot",
         f"{_LATER}positions restart at 0"),
        ("gpt2", lambda at: {"position_ids": torch.tensor([[at - 1]])}, None, "embed.positions",
         f"{_LATER}positions are 1 too small"),
        ("llama", lambda at: {
            "attention_mask": torch.tensor([[0] * PROMPT + [1] * (at + 1 - PROMPT)]),
            "position_ids": torch.tensor([[at]]),
        }, None, "L0.masked", f"{_LATER}the keys before token {PROMPT} are lost"),
        ("llama", lambda at: {}, last_again(0), "L0.scores",
         f"{_LATER}the key of the token before stands in place of its own"),
        ("gpt2", lambda at: {}, last_again(1), "L0.head_out",
         f"{_LATER}the value of the token before stands in place of its own"),
    ],
    ids=["off by one", "restart", "table", "lost", "stale key", "stale value"],
)  # fmt: skip
@pytest.mark.slow
def test_a_mistake_of_the_cache_is_named_with_its_pass(
    family: str, given: Any, broken: Any, step: str, words: str, tmp_path: Path
) -> None:
    found = compared(family, generated(family, given, **({"new": broken} if broken else {})), tmp_path)
    assert found.first is not None
    assert (found.first.begins, found.pass_of(found.first)) == (PROMPT, 1)
    assert f"of token {PROMPT}, in pass 2 of 4," in found.sentence
    assert found.cause is not None
    assert (found.cause.step, found.cause.words, found.cause.others, found.cause.found) == (step, words, (), True)
    assert found.cause.explained == found.cause.later > 0


def test_the_first_step_is_that_of_the_first_token_that_differs(tmp_path: Path) -> None:
    """A later layer that is wrong in an earlier pass comes before an earlier layer in a later pass."""
    passes = generated("llama")
    passes[1]["model.layers.1.mlp.up_proj"] = passes[1]["model.layers.1.mlp.up_proj"] * 2
    passes[2]["model.layers.0.self_attn.v_proj"] = passes[2]["model.layers.0.self_attn.v_proj"] * 2
    found = compared("llama", passes, tmp_path)
    assert found.first is not None
    assert (found.first.name, found.first.begins) == ("L1.ffn.hidden", PROMPT)


def test_one_file_may_hold_all_passes(tmp_path: Path) -> None:
    passes = generated("llama")
    together = {f"step{number}/{name}": values for number, kept in enumerate(passes) for name, values in kept.items()}
    np.savez(tmp_path / "all.npz", **together)
    found = model_of("llama").diff(None, open_any(tmp_path / "all.npz"))
    assert (found.first, found.passes) == (None, (0, 5, 6, 7))


def test_a_pass_may_give_every_key_that_it_has_cached(tmp_path: Path) -> None:
    """Those of the pass are compared; weights have a column for each."""
    model = model_of("llama")
    trace = model.trace(" ".join(map(str, IDS)))
    passes: Passes = []
    for start, end in ((0, PROMPT), *((at, at + 1) for at in range(PROMPT, len(IDS)))):
        passes.append(
            {
                "input_ids": np.array(IDS[start:end]),
                "L0.k_rot": trace["L0.k_rot"][:, :end].numpy(),
                "L0.v": trace["L0.v"][:, :end].numpy(),
                "L0.weights": trace["L0.weights"][:, start:end, :end].numpy(),
                "L0.scores": trace["L0.scores"][:, start:end, :end].numpy(),
            }
        )
    folder = written(passes, tmp_path / "passes")
    found = model.diff(None, open_any(folder))
    assert found.first is None
    assert {step.name for step in found.steps} == {"L0.k_rot", "L0.v", "L0.weights", "L0.scores"}
    passes[2]["L0.k_rot"][:, -1] *= -1
    np.savez(folder / "step2.npz", **passes[2])
    again = model.diff(None, open_any(folder)).first
    assert again is not None
    assert (again.name, again.begins) == ("L0.k_rot", PROMPT + 1)


def test_room_that_a_static_cache_has_for_later_keys_is_not_compared(tmp_path: Path) -> None:
    model = model_of("llama")
    trace = model.trace(" ".join(map(str, IDS)))
    passes: Passes = []
    for start, end in ((0, PROMPT), *((at, at + 1) for at in range(PROMPT, len(IDS)))):
        keys, weights = np.full((2, 16, 6), 9.0, np.float32), np.zeros((4, end - start, 16), np.float32)
        keys[:, :end], weights[..., :end] = trace["L0.k_rot"][:, :end], trace["L0.weights"][:, start:end, :end]
        passes.append({"input_ids": np.array(IDS[start:end]), "L0.k_rot": keys, "L0.weights": weights})
    found = model.diff(None, open_any(written(passes, tmp_path / "passes")))
    assert found.first is None
    assert [step.name for step in found.steps] == ["L0.k_rot", "L0.weights"]


def test_a_pass_without_its_ids_or_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    passes = generated("llama")
    del passes[1]["input_ids"]
    folder = written(passes, tmp_path / "passes")
    with pytest.raises(DumpError, match="pass 1 lacks its token ids"):
        open_any(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DumpError, match="holds no numbered files of activations"):
        open_any(tmp_path / "empty")
    assert is_passes(str(folder))
    (folder / "config.json").write_text("{}")
    assert not is_passes(str(folder))
    assert not is_passes(str(tmp_path / "empty"))


def test_a_step_that_one_pass_lacks_is_named_with_it(tmp_path: Path) -> None:
    passes = generated("llama")
    del passes[2]["model.layers.1.mlp.up_proj"]
    found = compared("llama", passes, tmp_path)
    assert "pass 3 of 4 has no model.layers.1.mlp.up_proj" in {one.why for one in found.incomparable}
