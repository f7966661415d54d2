"""Worked examples of strangers: what they would make is known before it is made, and every fault is one line."""

from pathlib import Path

import pytest

from tinytf.verify import parse, verify
from tinytf.verify.example import ExampleError

STEPS = {
    "an outer product": "linspace(0, 1, 20000) * ones(20000, 1)",
    "a sum that broadcasts": "ones(1, 20000) + ones(20000, 1)",
    "a product": "ones(20000, 1) @ ones(1, 20000)",
    "work without numbers": "ones(4400, 4400) @ ones(4400, 4400)",
    "scores": "scores(ones(20000, 1), ones(20000, 1))",
    "windows": "exp(windows(linspace(0, 1, 100000), 10000))",
    "a choice": "where(ones(20000, 1), ones(1, 20000), 0)",
    "a list": "[ones(4000, 4000), ones(4000, 4000)]",
    "a table": "sinusoidal(100000, 4096)",
    "a power": "2 ** 10000 ** 1000",
}


def example(tmp_path: Path, text: str):
    path = tmp_path / "strange.toml"
    path.write_text(text, "utf-8")
    return parse(path)


@pytest.mark.parametrize("value", STEPS.values(), ids=STEPS)
def test_what_would_fill_memory_is_refused_before_it_is_made(tmp_path: Path, value: str) -> None:
    found = example(tmp_path, f'[[step]]\nname = "B"\nvalue = "{value}"\nclaim = 1\n')
    with pytest.raises(ExampleError, match=r"line 3.*(more than 20,000,000|too large)"):
        verify(found)


def test_many_steps_keep_no_more_than_one_may(tmp_path: Path) -> None:
    steps = "".join(f'[[step]]\nname = "B{n}"\nvalue = "ones(1000, 4000) + {n}"\n' for n in range(8))
    with pytest.raises(ExampleError, match="more than 20,000,000"):
        verify(example(tmp_path, steps))


@pytest.mark.parametrize(
    "given", ['{random = "x"}', "{random = [0, 3]}", '{random = [2, 2], scale = "x"}', "{random = [1e9, 1e9]}",
              "{random = [100000, 100000]}", "[[1], [1, 2]]", "[]", "{size = 3}", "1979-05-27"],
)  # fmt: skip
def test_values_of_odd_types_and_shapes_are_one_line(tmp_path: Path, given: str) -> None:
    text = f'[given]\nA = {given}\n[[step]]\nname = "B"\nvalue = "sum(A)"\nclaim = 1\n'
    with pytest.raises(ExampleError, match=r"strange\.toml") as caught:
        verify(example(tmp_path, text))
    assert "\n" not in caught.value.message


def test_a_step_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match="B"):
        example(tmp_path, '[[step]]\nname = "B"\nvalue = "1"\n[[step]]\nname = "B"\nvalue = "2"\n')


def test_what_all_operations_make_together_is_bounded(tmp_path: Path) -> None:
    """The same however fast the machine is: ten steps of a million numbers, in both computations."""
    steps = "".join(f'[[step]]\nname = "B{n}"\nvalue = "sum(ones(1000, 1000) + {n})"\n' for n in range(10))
    found = example(tmp_path, steps)
    assert verify(found, budget=50_000_000).holds
    with pytest.raises(ExampleError, match=r"line \d+, field 'value' of step 'B\d': has no numbers left") as caught:
        verify(found, budget=5_000_000)
    assert caught.value.hint == "--budget gives more"


def test_finite_differences_are_taken_from_the_budget(tmp_path: Path) -> None:
    """Each of 100 entries is moved four times, and each time all of a step of 10,000 numbers is made again."""
    steps = '[[step]]\nname = "L"\nvalue = "sum(A @ A)"\n[[step]]\nname = "g"\nvalue = "gradient(L, A)"\n'
    found = example(tmp_path, f"[given]\nA = {{random = [10, 10]}}\n{steps}")
    assert verify(found, budget=2_000_000).holds
    with pytest.raises(ExampleError, match="step 'g': has no numbers left"):
        verify(found, budget=200_000)


def test_many_operations_without_numbers_are_work_too(tmp_path: Path) -> None:
    steps = '[[step]]\nname = "B"\nvalue = "' + "+".join(["1"] * 140) + '"\n'
    with pytest.raises(ExampleError, match="has no numbers left"):
        verify(example(tmp_path, steps), budget=100_000)
