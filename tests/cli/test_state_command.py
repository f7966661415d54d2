"""tinytf state: what it draws, and what it refuses."""

from driving import SENTENCE, Tinytf, is_a_clean_error


def test_the_command_shows_the_tokens_up_to_the_one_that_is_asked_for(tinytf: Tinytf) -> None:
    shown = tinytf("state", SENTENCE, "-m", "preset:mamba-tiny", "--position", "sat", "--width", "80")
    assert shown.status == 0
    assert "state of L0H0   after ·sat (token 2)" in shown.out
    assert "  2  ·sat" in shown.out
    assert "  3  ·on" not in shown.out
    assert "checked: it is the state in the cache of generation" in " ".join(shown.out.split())
    assert is_a_clean_error(tinytf("state", SENTENCE))
    assert is_a_clean_error(tinytf("state", SENTENCE, "-m", "preset:mamba-tiny", "--head", "9"))
