"""Prints a table of the researcher's methods: how far each is from an independent source, at most.

``python tests/parity/methods.py [--only WORDS] [--write]`` runs the tests that compare a method with its source, and
records each number that they compare; ``--write`` puts the table into docs/methods.md. A row whose source is not
installed, or that ``--only`` leaves out, stays there as it is.
"""

import argparse
import linecache
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import tinytf

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "methods.md"
_BLOCK = re.compile(r"(<!-- methods -->\n).*?(?=<!-- /methods -->)", re.DOTALL)
HEADER = """| method | independent source | worst difference | of numbers up to | cases | tests |
|---|---|---:|---:|---:|---|"""


@dataclass(frozen=True)
class Method:
    """A row: a method, the package and computation that it is compared with, and the tests that compare them."""

    name: str
    package: str
    """The distribution that computes the numbers a second time, whose version the row says."""
    how: str
    file: str
    tests: tuple[str, ...]
    line: str = ""
    """Of a test that compares several methods, only what lines that match this compare."""

    @property
    def nodes(self) -> list[str]:
        return [f"tests/{self.file}::{test}" for test in self.tests]

    @property
    def source(self) -> str:
        return {"sae_lens": "SAELens", "transformer_lens": "TransformerLens"}.get(self.package, self.package)


_OVER, _TEXTS = "cause/test_over_pairs.py", "test_every_number_is_that_of_transformers_text_by_text"
_METRIC, _SIX = "cause/test_metrics.py", "six kinds of models"
_GRADIENT, _STEERING, _TUNED = (
    "cause/test_attribution_patching.py", "cause/test_steering.py", "look/test_tuned_lens.py",
)  # fmt: skip
METHODS = (
    *(
        Method(question, "transformers", f"{how}, float32", _OVER, (_TEXTS,), line)
        for question, how, line in (
            ("`attribute` over pairs", "hooks on heads, feed-forwards and the final norm", r'values\["attribute"\]'),
            ("`ablate` over pairs, zero", "a hook on the output projection", r'values\["ablate"\]'),
            ("`ablate` over pairs, resample", "a hook on the output projection", r"resampled"),
            ("`patch` over pairs", "a hook on the output projection", r'values\["patch"\]'),
            ("`lens` over pairs", "hidden states through its norm and head", r'values\["lens"\]'),
            ("`attention` over pairs", "its attention weights", r'values\["attention"\]'),
            ("`score` over pairs", "its logits", r'reports\["score"\]'),
        )
    ),
    Method("scores of `pairs`", "transformers", "its logits, float32", "pairs/test_tasks.py",
           ("test_the_scores_are_those_of_transformers",), r"lead == "),
    Method("attribution patching", "transformers", "central differences of hooked runs, float64", _GRADIENT,
           ("test_the_estimate_of_a_head_is_the_slope_of_patching_it_a_little",)),
    Method("attribution patching, integrated", "transformers", "autograd at points between the embeddings, float64",
           _GRADIENT, ("test_integrated_estimates_are_mean_gradients_between_the_embeddings",)),
    Method("attribution patching, QK correction", "torch", "plain hooks on every kind of model, autograd, float64",
           "cause/test_atp_star.py",
           ("test_a_corrected_query_or_key_is_the_slope_along_its_own_change_of_the_weights",), "approx"),
    Method("attribution patching, GradDrop", "torch", "plain hooks on every kind of model, autograd, float64",
           "cause/test_atp_star.py", ("test_grad_drop_averages_the_sizes_that_plain_hooks_give",), "allclose"),
    Method("random controls", "torch", "plain hooks on every other head, float64", "cause/test_controls.py",
           ("test_the_controls_of_a_head_are_the_other_heads_of_its_layer",
            "test_the_largest_of_a_sweep_stands_beside_the_rest_of_it"), "approx"),
    Method("controls in random directions", "torch", "plain hooks with directions drawn again, float64",
           "cause/test_controls.py",
           ("test_the_controls_of_a_whole_step_move_each_token_as_far_in_random_directions",), "approx"),
    Method("random controls over pairs", "transformers", "a hook on the output projection, float32",
           "cause/test_over_pairs.py", ("test_an_address_stands_beside_the_other_heads_of_its_layer",), "approx"),
    *(
        Method(what, "torch", f"plain hooks on {how}, float64", _METRIC, (test,))
        for what, how, test in (
            ("metrics of a patch", _SIX, "test_a_patch_moves_each_metric_as_plain_hooks_do"),
            ("metrics of an ablation", _SIX, "test_an_ablation_moves_each_metric_as_plain_hooks_do"),
            ("metrics, answers of several tokens", "five kinds of decoders",
             "test_an_answer_of_several_tokens_is_read_where_each_is_predicted"),
            ("metrics, estimated patches", f"{_SIX}, central differences",
             "test_an_estimate_is_the_slope_of_the_metric"),
            ("metrics, parts", "a llama, autograd", "test_parts_sum_to_the_gradient_of_the_metric_times_the_logits"),
            ("metrics, steering", "a llama", "test_a_curve_of_steering_follows_each_metric"),
        )
    ),
    Method("path patching", "transformers", "the formula along the stream by hand, float64",
           "cause/test_path_patching.py",
           ("test_a_path_is_the_formula_along_the_stream", "test_feed_forwards_recompute_on_the_way_if_asked"),
           "approx"),
    Method("circuits, running", "torch", "a decoder written out, float64", "cause/test_circuits.py",
           ("test_a_circuit_runs_like_a_model_whose_inputs_sum_their_own_edges",)),
    Method("circuits, estimated edges", "torch", "central differences of that decoder, float64",
           "cause/test_circuits.py", ("test_estimated_scores_are_those_of_finite_differences",)),
    Method("circuits, measured edges", "torch", "that decoder without each edge, float64", "cause/test_circuits.py",
           ("test_measured_scores_are_the_lead_lost_with_the_edge",)),
    Method("circuits, edges into norms", "transformer_lens", "its gradients at the inputs of norms, float32",
           "peer/test_circuits_peer.py",
           ("test_scores_into_heads_feed_forwards_and_logits_are_those_of_its_gradients",)),
    Method("`ablate --repair`", "transformers", "hooks on heads and feed-forwards, float64", "cause/test_repair.py",
           ("test_every_term_is_that_of_transformers_by_hand",)),
    Method("ablation and patching", "transformer_lens", "its hooks, float32", "peer/test_interventions_peer.py",
           ("test_every_ablated_head_and_feed_forward_changes_the_prediction_alike",
            "test_a_mean_ablated_layer_changes_the_loss_alike", "test_every_patch_brings_back_as_much",
            "test_every_site_inside_attention_brings_back_as_much", "test_every_unit_brings_back_as_much")),
    Method("steering vectors", "transformers", "means of hidden states, float64", _STEERING,
           ("test_the_mean_is_that_of_the_hidden_states_of_transformers",)),
    Method("steered generation", "transformers", "generate with a hook on a layer, float64", _STEERING,
           ("test_a_steered_text_is_that_of_transformers_with_a_hook",), r"moved\[0\]"),
    Method("steered generation with a cache", "tinytf", "the same without a cache, float32", _STEERING,
           ("test_with_a_cache_and_without_the_logits_are_the_same",), "assert_close"),
    Method("control vectors in GGUF", "repeng", "files written and read by it", "peer/test_steering_peer.py",
           ("test_repeng_reads_what_we_write_and_we_what_it_writes",), r"assert_array_equal|torch\.equal"),
    Method("steering by its vectors", "repeng", "its ControlModel, float32", "peer/test_steering_peer.py",
           ("test_pca_is_the_direction_that_repeng_trains_and_adding_it_does_the_same",), "assert_close"),
    Method("`weights`, one head", "numpy", "the whole V × V matrices, float64", "look/test_weights.py",
           ("test_what_attending_to_a_token_promotes_is_its_row_of_the_whole_circuit",
            "test_what_a_query_prefers_is_its_row_of_the_whole_circuit"), r"assert_allclose|\.size"),
    Method("`weights`, copying scores", "numpy", "eigenvalues of the V × V matrix, float64", "look/test_weights.py",
           ("test_copying_scores_are_those_of_the_whole_circuit",), r"row\.copying == pytest.*values|row\.own =="),
    Method("composition", "numpy", "norms of products of C × C matrices, float64", "look/test_weights.py",
           ("test_composition_is_that_of_whole_matrices",), "expected"),
    Method("composition, norms folded", "transformer_lens", "all_composition_scores, float32",
           "peer/test_weights_peer.py", ("test_composition_is_that_of_transformer_lens_with_its_norms_folded",)),
    Method("eigenvalues and singular values", "transformer_lens", "FactoredMatrix, float64",
           "peer/test_weights_peer.py", ("test_eigenvalues_and_singular_values_are_those_of_a_factored_matrix",)),
    Method("lens and attribution", "transformer_lens", "its ActivationCache, float32", "peer/test_lens_peer.py",
           ("test_the_lens_says_the_same_after_every_layer_and_every_attention",
            "test_every_head_feed_forward_and_embedding_adds_the_same_to_a_difference_of_logits"),
           r"stage\.|approx"),
    Method("scores of heads", "transformer_lens", "detect_head, float32", "peer/test_heads_peer.py",
           ("test_scores_are_those_of_the_head_detector",), "assert_close"),
    Method("tuned lens, identity", "tinytf", "the logit lens and its token ids, float32", _TUNED,
           ("test_the_identity_is_the_logit_lens_to_the_last_bit",)),
    Method("tuned lens, stages", "torch", "translator, norm and head by hand, float64", _TUNED,
           ("test_a_stage_is_read_through_its_translator_and_the_last_as_it_is",), "assert_allclose"),
    Method("tuned lens, file of its package", "torch", "the layout of tuned-lens, written by hand", _TUNED,
           ("test_a_lens_of_the_tuned_lens_package_is_read",), r"map\(torch\.equal"),
    Method("`probe`", "scikit-learn", "LogisticRegression, float64", "look/test_probe.py",
           ("test_a_probe_is_the_logistic_regression_of_scikit_learn",), "assert_allclose"),
    Method("features by layout of the file", "numpy", "the formula by hand, float64", "features/test_layouts.py",
           ("test_sae_lens_layout_is_its_formula", "test_gemma_scope_is_jumprelu_without_an_input_bias",
            "test_gemma_scope_2_transcoder_adds_its_affine_part",
            "test_sparsify_subtracts_its_bias_unless_it_transcodes",
            "test_decoder_norms_and_fine_tuned_scales_are_folded_in"), "assert_allclose"),
    Method("feature circuits, edges", "torch", "GPT-2 forward by hand with patterns and norm scales held, float64",
           "features/test_feature_circuits.py", ("test_edges_are_those_of_a_forward_pass_by_hand",)),
    Method("feature circuits, sums", "torch", "paths and effects by the inverse of the dense matrix, float64",
           "features/test_feature_circuits.py",
           ("test_effects_are_the_sums_over_all_paths",
            "test_the_strongest_paths_are_the_largest_of_all_paths")),
    Method("feature circuits, taken out", "torch", "hooks on the feed-forwards, float64",
           "features/test_feature_circuits.py", ("test_a_feature_is_taken_out_of_the_model_itself",)),
    Method("`attribute --at`, parts and features", "torch", "RMSNorm held, W_Q and RoPE by hand, float64",
           "features/test_attribute_score.py",
           ("test_a_part_of_the_query_is_what_it_gives_by_hand",
            "test_features_of_the_stream_are_parts_and_what_they_miss_is_an_error")),
    Method("features of SAELens", "sae_lens", "its encode and forward, float32", "peer/test_features_peer.py",
           ("test_what_sae_lens_writes_is_read_as_it_reads_it",
            "test_sae_lens_reads_what_is_trained_here_as_it_is_read_here"), "assert_close"),
    Method("recorded activations", "tinytf", "`model.traces`, float32", "bulk/test_recording.py",
           ("test_the_rows_are_those_of_traces_to_the_last_bit",), r"torch\.equal"),
    Method("recorded activations, hidden states", "transformers", "its hidden states, float32",
           "bulk/test_recording.py", ("test_the_rows_are_the_hidden_states_of_transformers",)),
)  # fmt: skip


@dataclass
class Compared:
    """What one line of one test compared: how many numbers, the largest, and how far two of them are apart at most."""

    difference: float = 0.0
    largest: float = 0.0
    count: int = 0

    def add(self, ours: Any, theirs: Any) -> None:
        a, b = (np.asarray(each.detach().double() if isinstance(each, torch.Tensor) else each, dtype=np.float64)
                for each in (ours, theirs))  # fmt: skip
        a, b = np.broadcast_arrays(a, b)
        with np.errstate(invalid="ignore"):  # of infinities
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        self.count += a.size
        if a.size:
            self.difference = max(self.difference, math.inf if np.isnan(apart).any() else float(apart.max()))
            self.largest = max(self.largest, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))


@dataclass(eq=False)  # pytest hashes plugins
class Recorder:
    """A plugin of pytest that records every comparison that a line of the running test makes."""

    compared: dict[tuple[str, str], Compared] = field(default_factory=dict)
    """By the file and name of a test, and by the text of the line."""
    passed: set[str] = field(default_factory=set)
    """The tests that ran, and were not skipped."""
    _test: str = ""
    _path: str = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._test, self._path = item.nodeid.partition("[")[0], str(item.path)
        try:
            return (yield)
        finally:
            self._path = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid.partition("[")[0])

    def add(self, frame: FrameType | None, ours: Any, theirs: Any) -> None:
        if not self._path:
            return
        while frame is not None and frame.f_code.co_filename != self._path:
            frame = frame.f_back
        if frame is not None:
            line = linecache.getline(self._path, frame.f_lineno).strip()
            self.compared.setdefault((self._test, line), Compared()).add(ours, theirs)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Record what ``pytest.approx`` and the comparisons of torch and numpy are given by a test itself."""
        for owner, name in ((torch, "equal"), (torch, "allclose"), (torch.testing, "assert_close"),
                            (np.testing, "assert_allclose"), (np.testing, "assert_array_equal")):  # fmt: skip
            patch.setattr(owner, name, self._watched(getattr(owner, name)))
        scalar: Any = type(pytest.approx(1.0))
        equal = scalar.__eq__

        def compare(expected: Any, ours: Any) -> Any:
            self.add(sys._getframe(1), ours, expected.expected)
            return equal(expected, ours)

        patch.setattr(scalar, "__eq__", compare)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def compare(ours: Any, theirs: Any, *args: Any, **settings: Any) -> Any:
            frame = sys._getframe(1)
            if frame.f_code.co_filename == self._path:
                self.add(frame, ours, theirs)
            return function(ours, theirs, *args, **settings)

        return compare

    def row(self, method: Method) -> str | None:
        """The line of a method; None where its tests were skipped."""
        if not self.passed.issuperset(method.nodes):
            return None
        total = [
            compared
            for (test, line), compared in self.compared.items()
            if test in method.nodes and re.search(method.line, line)
        ]
        if not total:
            raise SystemExit(f"{method.name}: its tests compare nothing\nhint: correct the row's line, {method.line!r}")
        release = tinytf.__version__ if method.package == "tinytf" else version(method.package).partition("+")[0]
        worst, largest = (max(getattr(each, name) for each in total) for name in ("difference", "largest"))
        cells = (
            method.name, f"{method.source} {release}: {method.how}", "0" if worst == 0 else f"{worst:.1e}",
            f"{largest:.3g}" if largest < 1000 else f"{largest:,.0f}", f"{sum(each.count for each in total):,}",
            f"`{method.file}`",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def recorded(methods: Sequence[Method]) -> Recorder:
    """What the tests of some rows compare, run in this process; what pytest prints goes to stderr."""
    recorder, chosen = Recorder(), dict.fromkeys(node for method in methods for node in method.nodes)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(sys.stderr):
        recorder.watch(patch)
        code = pytest.main(["-n", "0", *chosen], plugins=[recorder])
    if code != pytest.ExitCode.OK:
        raise SystemExit("a test failed or is not there, so there is no table\nhint: see what pytest printed above")
    return recorder


def rows(only: str, page: str) -> Iterator[str]:
    """The lines of the table, with those of the page where a row is left out or its source is not installed."""
    methods = [method for method in METHODS if only.lower() in f"{method.name} {method.source}".lower()]
    if not methods:
        raise SystemExit(f"no row has {only!r}\nhint: give words of a method or the name of a package")
    recorder = recorded(methods)
    for method in METHODS:
        line = recorder.row(method)
        if line is None:
            if method in methods:
                sys.stderr.write(f"{method.name}: {method.source} is not installed, so the row stays as it was\n")
            kept = re.search(rf"^\| {re.escape(method.name)} \|.*$", page, re.MULTILINE)
            unknown = f"| {method.name} | {method.source}: {method.how} | not run | | | `{method.file}` |"
            line = kept[0] if kept else unknown
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="rows with these words in method or package")
    parser.add_argument("--write", action="store_true", help="put the table into docs/methods.md")
    options = parser.parse_args()
    os.chdir(ROOT)
    page = PAGE.read_text("utf-8")
    table = "\n".join((HEADER, *rows(options.only, page)))
    sys.stdout.write(f"{table}\n")
    if options.write:
        PAGE.write_text(_BLOCK.sub(lambda block: f"{block[1]}{table}\n", page), "utf-8")


if __name__ == "__main__":
    main()
