"""A reference that makes mistakes: everything after a wrong step follows from it by the rows of the step table."""

from collections.abc import Mapping

from torch import Tensor

from tinytf.compare.mistakes.mistake import Mistake, Wrong
from tinytf.parts.row import Step
from tinytf.steps.table import Place, StepTable
from tinytf.trace.site import Site
from tinytf.trace.trace import Recording, Trace


class Mistaken(Trace):
    """A trace in which some steps are computed by wrong formulas; those before the first of them are the base's.

    The base may be mistaken itself: its mistakes after that one are made again.
    """

    def __init__(self, base: Trace, wrong: Mapping[Place, Wrong]) -> None:
        kept: dict[str, Tensor] = {}
        begun = False
        for step, layer in base.steps.rows:
            begun = begun or (step.name, layer) in wrong
            is_first = not base.steps.sources(step, layer) and (step.name, layer) not in wrong
            if step.operation is not None and step.to_loss and (is_first or not begun):
                kept[step.full_name(layer)] = base.step(step.name, layer)
        super().__init__(base.model, base.encoding, Recording(kept, (), base.recording.layers))
        self.wrong = {**getattr(base, "wrong", {}), **wrong}

    def _derived_step(self, step: Step, layer: int | None, heads: tuple[int, ...] | None) -> Tensor:
        found = self.wrong.get((step.name, layer))
        if found is None:
            return super()._derived_step(step, layer, heads)
        made = found(Site(self, step, layer))
        if heads is None:
            return made
        shared = self.config.at(layer).heads_per_kv if "kv head" in step.axes else 1
        return made[[head // shared for head in heads]]


def places(mistake: Mistake, table: StepTable, at: Place, scope: str) -> dict[Place, Wrong]:
    """The steps that a mistake changes, from the layer of ``at`` on: ``all`` of that operation, of that ``name``, or
    ``one`` step alone; those that it changes as well go with them."""
    found: dict[Place, Wrong] = {}
    first = at[1] or 0
    for step, layer in table.rows:
        if (layer is not None and at[1] is not None and layer < first) or (step.from_stream and layer is not None):
            continue
        named = scope == "all" or step.name == at[0]
        alone = scope != "one" or layer == at[1]
        inside = layer is not None or not mistake.also  # what changes several kinds of steps is the form of a block
        if mistake.fits(step) and named and alone and inside:
            found[step.name, layer] = mistake.wrong
        for operation, wrong in mistake.also:
            if type(step.operation) is operation and alone and layer is not None:
                found[step.name, layer] = wrong
    return found
