"""Each question is declared once: as one function, which is a method of Model by a line."""

import inspect

import pytest
from architectures import asked, config_of, lively

from tinytf.api import Model
from tinytf.errors import UsageError
from tinytf.lazy_methods import LazyMethod

QUESTIONS = sorted(name for name, value in vars(Model).items() if isinstance(value, LazyMethod))


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_method_is_the_function_of_its_file_without_the_model(name: str) -> None:
    model = asked(lively(config_of("gpt2")))
    method, function = getattr(model, name), getattr(Model, name)
    assert method.__self__ is model
    assert method.__func__ is function
    assert method.__doc__
    assert method.__doc__ == function.__doc__
    of_model, *parameters = inspect.signature(function).parameters.values()
    assert of_model.name == "model"
    assert list(inspect.signature(method).parameters.values()) == parameters


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_setting_of_a_question_has_a_name_and_a_type(name: str) -> None:
    for one in inspect.signature(getattr(Model, name)).parameters.values():
        assert one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY), one
        assert one.annotation is not one.empty, one


def test_a_number_of_no_token_is_refused() -> None:
    model = asked(lively(config_of("gpt2")))
    for number in (-1, 31):
        with pytest.raises(UsageError, match=f"there is no token {number}, the model has 31"):
            model.ablate("3 14", "L0", target=number)
    assert model.ablate("3 14", "L0", target=30).target == 30
