"""Options that several subcommands share: one name, one meaning, one help text."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id or folder of the model.")]
Store = Annotated[str, typer.Argument(metavar="STORE", help="Folder of the datastore.")]

K = Annotated[int | None, typer.Option("--k", help="Neighbors a query.")]
Lmbda = Annotated[
    float | None, typer.Option("--lmbda", help="Weight of the neighbors, from 0 to 1.")
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", help="Of the softmax over the neighbors, above 0."),
]
Nprobe = Annotated[int | None, typer.Option("--nprobe", help="Inverted lists visited a query.")]
Refine = Annotated[bool, typer.Option("--refine", help="Recompute distances from the stored keys.")]
Key = Annotated[
    str,
    typer.Option("--key", help="ffn_input, layer_output, or a module's path with :input/:output."),
]
Metric = Annotated[str | None, typer.Option("--metric", help="l2, ip or cosine.")]
Index = Annotated[str, typer.Option("--index", metavar="FACTORY|exact|auto", help="Kind of index.")]
Window = Annotated[int | None, typer.Option("--window", help="Tokens the model sees at once.")]
Stride = Annotated[int | None, typer.Option("--stride", help="Tokens the window moves on by.")]
Concatenate = Annotated[
    bool | None,
    typer.Option(
        "--concatenate/--no-concatenate",
        help="Join the documents into one stream; as the datastore did where not given.",
    ),
]
BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", min=1, help="Tokens a forward pass.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at a document that cannot be read.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, mps or auto.")]
Dtype = Annotated[
    str, typer.Option("--dtype", help="Precision of the model: auto, float32, bfloat16, float16.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads; all of them where not given.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")
]
