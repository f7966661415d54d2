"""A reference that makes mistakes: all steps after a wrong one are recomputed by the rows of the step table."""

from collections.abc import Mapping

from torch import Tensor

from tinytf.compare.mistakes.mistake import Mistake, Wrong
from tinytf.parts.row import Step
from tinytf.steps.table import StepKey, StepTable
from tinytf.trace.site import Site
from tinytf.trace.trace import Recording, Trace


class WrongTrace(Trace):
    """A trace in which some steps are computed by wrong formulas; the steps before the first come from ``base``.

    The base may be a mistaken trace too; its own mistakes stay.
    """

    def __init__(self, base: Trace, wrong: Mapping[StepKey, Wrong]) -> None:
        super().__init__(base.model, base.encoding, Recording({}, (), base.recording.layers), base.source)
        self.base, self.wrong = base, {**getattr(base, "wrong", {}), **wrong}
        self._unchanged: set[StepKey] = set()
        for step, layer in base.steps.rows:
            if (step.name, layer) in wrong:
                break
            self._unchanged.add((step.name, layer))

    def step(self, name: str, layer: int | None = None, heads: tuple[int, ...] | None = None) -> Tensor:
        key = (self.steps.at(name, layer).name, layer)
        is_input = key not in self.wrong and not self.steps.sources(self.steps.at(*key), layer)
        if key in self._unchanged or is_input:
            return self.base.step(*key, heads)
        return super().step(name, layer, heads)

    def _derived_step(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> Tensor:
        formula = self.wrong.get((step.name, layer))
        if formula is None:
            return super()._derived_step(step, layer, heads)
        values = formula(Site(self, step, layer))
        if heads is None:
            return values
        shared = self.config.at(layer).heads_per_kv if "kv head" in step.axes else 1
        return values[[head // shared for head in heads]]


def wrong_formulas(mistake: Mistake, table: StepTable, at: StepKey, scope: str) -> dict[StepKey, Wrong]:
    """The wrong formulas of a mistake by step, from the layer of ``at`` on.

    ``scope`` is ``all`` for every step of its operation, ``name`` for steps of that name, ``one`` for one step alone.
    The steps of ``also`` change with them.
    """
    wrong_steps: dict[StepKey, Wrong] = {}
    first = at[1] or 0
    for step, layer in table.rows:
        if (layer is not None and at[1] is not None and layer < first) or (step.from_stream and layer is not None):
            continue
        name_matches = scope == "all" or step.name == at[0]
        layer_matches = scope != "one" or layer == at[1]
        in_layer = layer is not None or not mistake.also  # a mistake in several operations belongs to a block
        if mistake.fits(step) and name_matches and layer_matches and in_layer:
            wrong_steps[step.name, layer] = mistake.wrong
        for operation, wrong in mistake.also:
            if type(step.operation) is operation and layer_matches and layer is not None:
                wrong_steps[step.name, layer] = wrong
    return wrong_steps
