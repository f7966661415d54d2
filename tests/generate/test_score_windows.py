"""The windows in which a long text is scored."""

import pytest

from tinytf.generate.score import _windows


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize("context", [8, 9, 15])
def test_every_token_is_predicted_once_after_at_least_half_a_context(context: int, lead: int) -> None:
    predicted = []
    for first, begin, end in _windows(50, context, lead):
        for token in range(begin, end):
            before = token - first + (lead if first else 0)
            assert min(token, context / 2) <= before <= context
        predicted += range(begin, end)
    assert predicted == list(range(1, 50))
