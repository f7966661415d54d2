"""The view of two logs of log-probabilities: how far apart, and which token first."""

from collections.abc import Iterator

from tinytf.compare.logprobs import Furthest, LogprobDifference
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Line
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import note, titled, verdict


@draws(LogprobDifference)
def logprobs(report: LogprobDifference, terminal: Terminal, display: Display) -> Iterator[Block]:
    """The differences, the ratios they make, and the tokens that are furthest apart."""
    half, tenth, hundredth, most = (f"{size:.2g}" for size in report.quantiles)
    low, first, last, high = (f"{ratio:.3g}" for ratio in report.ratios)
    yield Line(f"{plural(report.texts, 'text')}, {plural(report.tokens, 'token')} with two log-probabilities, in nats")
    yield titled("difference", f": mean {report.mean:+.2g}, root mean square {report.rms:.3g}; of half the tokens "
                               f"at most {half}, of 90 % {tenth}, of 99 % {hundredth}, of all {most}")  # fmt: skip
    yield titled("importance ratios", f": from {low} to {high}, 98 % of them from {first} to {last}")
    yield titled("KL", f": {report.kl:.3g} nats a token, estimated as e^Δ − 1 − Δ")
    yield titled("furthest apart", f": {_where(report.worst)}")
    if report.own is None:
        yield note("--floor bf16 -m MODEL compares this with the model's own error on the ids")
        return
    if report.beyond is not None:
        yield titled("beyond rounding first", f": {_where(report.beyond)}", "bad")
    yield verdict(report.holds, f"the model's own root mean square in {report.floor} is {report.own:.2g} nats")


def _where(place: Furthest) -> str:
    token = "" if place.id is None else f", id {place.id:,}"
    return f"text {place.text + 1}, position {place.position:,}{token}: {place.first:.4g} and {place.second:.4g}"
