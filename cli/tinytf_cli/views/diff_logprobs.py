"""The view of two logs of log-probabilities: how far apart, whether that is rounding, and which token first."""

from collections.abc import Iterator

from tinytf.compare.logprobs import Furthest, LogprobDifference
from tinytf.compare.rounding import MEAN, PROBABILITY, SIGNS, SIZE, RoundingTest
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import note, titled, verdict

_TESTS = {
    MEAN: "mean near 0",
    SIGNS: "to both sides",
    PROBABILITY: "whatever the probability",
    SIZE: "as large as the model's own",
}


@draws(LogprobDifference)
def logprobs(report: LogprobDifference, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The differences, what speaks for rounding, the ratios they make, and the tokens that are furthest apart."""
    if report.not_finite is not None:
        yield note("what is not finite is in none of these figures")
    half, tenth, hundredth, most = (f"{size:.2g}" for size in report.quantiles)
    low, first, last, high = (f"{ratio:.3g}" for ratio in report.ratios)
    yield Line(f"{plural(report.texts, 'text')}, {plural(report.tokens, 'token')} with two log-probabilities, in nats")
    yield titled("difference", f": mean {report.mean:+.2g}, root mean square {report.rms:.3g}; of half the tokens "
                               f"at most {half}, of 90 % {tenth}, of 99 % {hundredth}, of all {most}")  # fmt: skip
    yield titled("importance ratios", f": from {low} to {high}, 98 % of them from {first} to {last}")
    yield titled("KL", f": {report.kl:.3g} nats a token, estimated as e^Δ − 1 − Δ")
    yield titled("furthest apart", f": {_where(report.worst)}")
    if report.beyond is not None:
        yield titled("beyond rounding first", f": {_where(report.beyond)}", "bad")
    yield titled("like rounding", ":")
    for test in report.tests:
        yield verdict(test.holds, f"{_TESTS[test.name]}: {_measured(report, test)}")
    for one in report.explanations:
        left = f"what is left is {one.left:.2g} nats (root mean square)"
        yield titled("explained", f": those of {one.side} {one.words}; {left}", "accent")
    if report.tried and not report.explanations:
        yield titled("tried without success", f": {'; '.join(report.tried)}")
    if report.own is None:
        yield note("-m MODEL tries temperatures, truncations, penalties and prompts on the ids, too; with --floor bf16 "
                   "the model's own error says whether the size is that of rounding")  # fmt: skip


def _measured(report: LogprobDifference, test: RoundingTest) -> str:
    """What a test measured, and its limit."""
    if test.name == SIZE:
        own = f"the model's own root mean square in {report.floor} is {report.own:.2g} nats"
        return f"{test.value:.2g} × of at most {test.limit:g}; {own}"
    if test.limit >= (0.5 if test.name == SIGNS else 1):
        return f"{plural(report.tokens, 'token')} cannot tell"
    if test.name == MEAN:
        return f"{test.value:.2f} of the root mean square, at most {test.limit:.2f}"
    if test.name == SIGNS:
        return f"{0.5 + test.value:.0%} to one side, at most {0.5 + test.limit:.0%}"
    return f"rank correlation with log p {test.value:.2f}, at most {test.limit:.2f}"


def _where(place: Furthest) -> str:
    token = "" if place.id is None else f", id {place.id:,}"
    return f"text {place.text + 1}, position {place.position:,}{token}: {place.first:.4g} and {place.second:.4g}"
