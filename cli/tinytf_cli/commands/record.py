"""``tinytf record``: the activations of a corpus, in a folder that other commands and programs read."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.inputs import corpus_files, read_by
from tinytf_cli.options import ModelOptions
from tinytf_cli.output import Output
from tinytf_cli.ranges import CORPUS, Real, Whole


@dataclass(frozen=True)
class Options:
    """What to record of a corpus, and where to."""

    GROUP: ClassVar = "Record"

    corpus: tuple[Path, ...] = argument(nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CORPUS...")
    out: Path = option(required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder of the recording.")
    addresses: tuple[str, ...] = option(
        "--at", multiple=True, required=True, metavar="ADDRESS",
        help="Record this step: 'L*.out', L3.ffn.act or L3H2.head_out. Repeatable.",
    )  # fmt: skip
    every_token: bool = option(
        "--every-token/--last", default=True, help="Record every token, or the last of each document.  [default: every]"
    )
    document: str = option(
        type=click.Choice(["paragraph", "line", "file"]), shown="paragraph", help="What a document of a text file is."
    )
    field: str | None = option(
        metavar="NAME", help="The text of a row of .jsonl, .csv, .tsv or .parquet.  [default: the only text]"
    )
    window: int | None = option(type=Whole(1), help="Tokens in one pass.  [default: at most 1024]")
    limit: int | None = option(type=Whole(1, CORPUS), help="Most tokens to record.")
    save_as: str = option(
        type=click.Choice(["float16", "bfloat16", "float32"]), shown="float32", help="Number format on disk."
    )
    shard_size: float = option(type=Real(0.001, 1_000_000), shown=64, help="Size of a shard, in megabytes.")
    force: bool = option(is_flag=True, help="Record even if the disk seems too small.")


@command("record")
def record(options: Options, model_options: ModelOptions, output: Output) -> int:
    """Writes a row of numbers for each token to DIR: safetensors files, and an index.json that describes them.
    tinytf.recorded(DIR) reads it, as do neurons and features --top-examples, lens --train, train-sae and probe --from.
    CORPUS is text files, folders, tables or - for a pipe; of a model with two stacks it is tables of source and target,
    whose targets have the rows. Ctrl-C keeps what is recorded, and the same command
    continues. For the steps of another program, see tinytf diff --recorder.
    """
    from tinytf.kept import RECORDING
    from tinytf.outputs import require_outside
    from tinytf.tables import in_bytes
    from tinytf.text.corpus import Reading
    from tinytf.text.rows import TABLES
    from tinytf_cli.many import processes_of
    from tinytf_cli.progress_line import progress_line

    require_outside(options.out, RECORDING)
    if options.out.exists() and not options.out.is_dir():
        raise UsageError(f"{options.out} is a file", "name a folder")
    is_table = any(path.suffix.lower() in TABLES for path in options.corpus)
    field = "" if options.field is None and is_table else options.field
    with processes_of(output) as group:
        model = model_options.open(two_stacks=True)
        files = corpus_files(options.corpus, ("TEXT",), read_by(model, Reading(options.document, field)))

        def on_estimate(rows: int, size: int) -> None:
            if group.rank == 0:
                output.note(f"about {rows:,} tokens and {in_bytes(size)} to record in {options.out}")

        with progress_line(output.stderr if group.rank == 0 else None, "recorded: token") as on_progress:
            report = model.record(
                files, options.addresses, options.out, dtype=options.save_as, every_token=options.every_token,
                window=options.window, shard_size=options.shard_size, limit=options.limit, force=options.force,
                group=group, on_estimate=on_estimate, on_progress=on_progress,
            )  # fmt: skip
    if group.rank == 0:
        output.draw(report)
    return 0 if report.complete else 130
