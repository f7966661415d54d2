"""Changing what happens inside an open model, and comparing what comes of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tinytf.errors import UsageError
from tinytf.steps.table import StepTable
from tinytf.trace.trace import Trace

if TYPE_CHECKING:
    from tinytf.analysis.difference import Difference
    from tinytf.analysis.interventions import Ablation, AblationSweep, Intervention, Patched, PatchSweep, Reference
    from tinytf.opened.base import Opened

from tinytf.opened.inspecting import Inspecting


@dataclass(frozen=True)
class Intervening(Inspecting):
    """What becomes of a prediction when parts of the model are taken out or exchanged."""

    def diff(
        self,
        text: str,
        other: "str | Opened",
        *,
        tolerance: float | None = None,
        head: str | None = None,
        top: int = 5,
        truncate: bool = False,
        force: bool = False,
    ) -> "Difference":
        """What is different, step by step, on another text, or on another model (or dtype) with this text.

        ``head`` is an address such as ``L3H5``. Errors and settings as of ``tinytf.analysis.difference.difference``.
        """
        from tinytf.analysis.alignment import Side
        from tinytf.analysis.difference import difference, parse_head
        from tinytf.steps.table import StepTable

        versus, words = (self, other) if isinstance(other, str) else (other, text)
        sides = [Side(model.transformer, model.tokenizer, model.encode(words, truncate=truncate))
                 for model, words in ((self, text), (versus, words))]  # fmt: skip
        where = None if head is None else parse_head(head, StepTable(self.config))
        return difference(*sides, tolerance=tolerance, head=where, top=top, force=force)

    def reference(self, file: str | Path | None = None) -> "Reference":
        """Texts to take means over and to draw others from: those of ``file``, or of the model's own corpus.

        Raises UsageError where there is neither, and as ``read_reference`` does.
        """
        from tinytf.analysis.interventions import read_reference

        encode = partial(self.encode, truncate=True)
        if file is not None:
            return read_reference(Path(file), str(file), encode)
        if self.corpus is None:
            raise UsageError(
                f"{self.name} has no texts of its own to take a mean over or to draw from",
                "name a file of texts, with an empty line between them: --reference FILE",
            )
        return read_reference(self.corpus, f"{self.name}'s {self.corpus.name}", encode)

    def ablate(
        self, text: str | Trace, at: str | Sequence[str], *, target: str | None = None, **settings: Any
    ) -> "Ablation":
        """What the prediction after ``text`` becomes with the steps of ``at`` ablated together, such as ``"L3H5"``.

        ``target`` is the token that is followed, the predicted one unless named. ``settings`` (``how``, ``reference``,
        ``seed``, ``top``) are those of ``tinytf.analysis.interventions.ablate``, errors too.
        """
        from tinytf.analysis.interventions import ablate

        trace = self.trace(text) if isinstance(text, str) else text
        number = None if target is None else self.find_token(target)
        return ablate(trace, [at] if isinstance(at, str) else at, target=number, **self._referred(settings))

    def ablation_sweep(
        self, text: str | Trace, over: str = "heads", *, target: str | None = None, **settings: Any
    ) -> "AblationSweep":
        """The same for every head, feed-forward or layer (``heads``, ``ffn``, ``layers``), each alone, batched."""
        from tinytf.analysis.interventions import ablation_sweep

        trace = self.trace(text) if isinstance(text, str) else text
        number = None if target is None else self.find_token(target)
        return ablation_sweep(trace, over, target=number, **self._referred(settings))

    @contextmanager
    def ablated(
        self, at: str | Sequence[str], *, how: str = "zero", reference: str | Path | None = None
    ) -> Iterator[None]:
        """Every text that goes through the model in here goes through it with the steps of ``at`` ablated.

        Forward passes, traces and generation alike; ``how`` is ``zero`` or ``mean``. Errors as of ``ablate``.
        """
        from tinytf.analysis.interventions import ablated

        interventions, _ = self._ablations(at, how, reference)
        with ablated(self.transformer, interventions):
            yield

    def without(self, at: str | Sequence[str], *, how: str = "zero", reference: str | Path | None = None) -> Self:
        """The same model, of the same weights, that always runs with the steps of ``at`` ablated; as ``ablated``."""
        from tinytf.analysis.interventions import without

        interventions, source = self._ablations(at, how, reference)
        note = f"without {at if isinstance(at, str) else ', '.join(at)} ({source or how})"
        transformer = without(self.transformer, interventions)
        return replace(self, transformer=transformer, file_notes=(*self.file_notes, note))

    def _ablations(
        self, at: str | Sequence[str], how: str, reference: str | Path | None
    ) -> "tuple[list[Intervention], str]":
        """What takes the place of the steps, and where it is from."""
        from tinytf.analysis.interventions import Intervention, sites_of, values_for

        sites = sites_of([at] if isinstance(at, str) else at, StepTable(self.config))
        texts = None if how == "zero" else self.reference(reference)
        values = values_for(self.transformer, sites, how, texts)
        return [Intervention(site, values.of[site]) for site in sites], values.source

    def patch(self, clean: str | Trace, corrupt: str | Trace, at: str | Sequence[str], **settings: Any) -> "Patched":
        """What the corrupt text gives with the clean run's activations at the steps of ``at`` put in.

        ``answer`` and ``versus`` are the tokens whose logit difference is followed: each run's prediction unless named.
        The other ``settings`` (``positions``, ``top``) are those of ``tinytf.analysis.interventions.patch``, errors
        too.
        """
        from tinytf.analysis.interventions import patch

        traces = self._both(clean, corrupt)
        return patch(*traces, [at] if isinstance(at, str) else at, **self._contrasted(settings))

    def patch_sweep(
        self, clean: str | Trace, corrupt: str | Trace, over: str = "residual", **settings: Any
    ) -> "PatchSweep":
        """The same for every layer and position (``residual``, ``attn``, ``ffn``), or every head (``heads``)."""
        from tinytf.analysis.interventions import patch_sweep

        return patch_sweep(*self._both(clean, corrupt), over, **self._contrasted(settings))

    def _both(self, *texts: str | Trace) -> tuple[Trace, Trace]:
        clean, corrupt = (self.trace(text) if isinstance(text, str) else text for text in texts)
        return clean, corrupt

    def _contrasted(self, settings: dict[str, Any]) -> dict[str, Any]:
        words = {name: settings[name] for name in ("answer", "versus") if isinstance(settings.get(name), str)}
        return {**settings, **{name: self.find_token(word, name) for name, word in words.items()}}

    def _referred(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of an ablation with the reference that it needs, where a file or none is named."""
        given = settings.get("reference")
        needed = settings.get("how") in ("mean", "resample") and (given is None or isinstance(given, str | Path))
        return {**settings, "reference": self.reference(given)} if needed else settings
