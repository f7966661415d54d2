"""Numbers that are solved for: of a norm whose vectors have heads as of one without, and what float32 rounds anyway."""

import pytest
import torch

from tinytf.compare.constants import solved_eps
from tinytf.compare.floor import Floor, Share


@pytest.mark.parametrize("shape", [(5, 16), (3, 5, 16), (2, 3, 5, 16)])
@pytest.mark.parametrize("centred", [False, True])
def test_the_eps_of_a_norm_is_solved_whatever_axes_its_vectors_have(shape: tuple[int, ...], centred: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x, gain = 0.05 * torch.randn(shape, generator=generator), 1 + torch.rand(shape[-1], generator=generator)
    deviation = x - x.mean(-1, keepdim=True) if centred else x
    normed = deviation / (deviation.square().mean(-1, keepdim=True) + 3e-4).sqrt() * gain
    assert solved_eps(x, normed, gain, None, centred=centred) == pytest.approx(3e-4, rel=1e-2)


def test_a_step_of_a_floor_has_a_finite_verdict_where_the_model_rounds_nothing() -> None:
    from tinytf.compare.floor import _SINGLE

    assert Share("logits", 0.0, _SINGLE).times == 0
    assert Floor("q8_0", (Share("logits", _SINGLE, _SINGLE),)).bug is None
    assert Floor("q8_0", (Share("logits", 100 * _SINGLE, _SINGLE),)).bug is not None
