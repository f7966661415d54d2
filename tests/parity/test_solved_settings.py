"""Numbers of a configuration that no list holds are solved for, and said under the name of the setting."""

import broken_ports as ports
import pytest


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("granite: residual by 0.707", "what is added, times 0.70711 instead of 0.4"),
        ("granite: multiplied by √d_model", "embeddings times 6.9282 instead of 3"),
        ("olmo2: eps", "eps 0.01 instead of 1e-05"),
        ("llama: a cap too many", "a soft cap of 2 of the scores added"),
        ("llama3: low and high exchanged", "low_freq_factor (YaRN: beta_slow) 2 instead of 1"),
    ],
)
def test_a_wrong_number_is_solved_for(name: str, words: str) -> None:
    assert words in ports.cause_of(ports.compared(ports.BROKEN[name]))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_step_known_up_to_a_factor_hides_no_later_fault() -> None:
    # Granite's embeddings are dumped before their multiplier
    found = ports.compared(ports.BROKEN["granite: rows of q in pairs alone"])
    assert found.first is not None
    assert found.first.name == "L0.q"
    assert "in pairs" in ports.cause_of(found)
