"""`knn-logits explain MODEL STORE TEXT`."""

from __future__ import annotations

from typing import Annotated

import typer

from knn_logits.cli import options
from knn_logits.cli.common import interruptible, load_model, prepare, print_json, read_text


def explain(
    model: options.Model,
    store: options.Store,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text; - reads standard input.")],
    sources: Annotated[int, typer.Option("--sources", min=0, help="Sources listed.")] = 12,
    k: options.K = None,
    lmbda: options.Lmbda = None,
    temperature: options.Temperature = None,
    nprobe: options.Nprobe = None,
    refine: options.Refine = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Show which passages speak for each word of a text that exists already."""
    text = read_text(text)
    from knn_logits.datastore.store import Datastore
    from knn_logits.trace.trace import token_dict

    datastore = Datastore(store)
    prepare(threads)
    loaded, tokenizer = load_model(model, device, dtype)
    from knn_logits.explanation import explain as explain_text

    with interruptible("nothing was written"):
        trace = explain_text(
            loaded,
            tokenizer,
            datastore,
            text,
            k=k,
            lmbda=lmbda,
            temperature=temperature,
            nprobe=nprobe,
            refine=refine,
            threads=threads,
        )
    if json:
        tokens = [token_dict(token) for token in trace[0].tokens]
        print_json({"text": text, "first": trace[0].prompt, "tokens": tokens})
        return
    trace.show(sources)
