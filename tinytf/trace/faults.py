"""Where the numbers of a forward pass stop being numbers."""

from torch import Tensor

from tinytf.trace.trace import Trace


def first_not_finite(trace: Trace) -> str | None:
    """The full name of the first step that holds NaN or +∞, and of −∞ where nothing is masked; None if all is well."""
    for step, layer in trace.steps.rows:
        if not step.is_tensor or (layer is not None and layer not in trace.recording.layers):
            continue
        if step.name in ("logits", "probs"):
            tensor: Tensor = trace.recorded_logits
        else:
            tensor = trace.step(step.name, layer)
        fine = ~tensor.isnan() & ~tensor.isposinf() if step.name == "masked" else tensor.isfinite()
        if not bool(fine.all()):
            return step.full_name(layer)
    return None
