"""`knn-logits generate MODEL STORE --prompt TEXT`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from knn_logits.cli import options
from knn_logits.cli.common import interruptible, load_model, prepare, print_json
from knn_logits.errors import ConfigError


def generate(
    model: options.Model,
    store: options.Store,
    prompt: Annotated[
        str, typer.Option("--prompt", help="Text to continue; - reads it from standard input.")
    ],
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Tokens to write, at most.")
    ] = 60,
    compare: Annotated[bool, typer.Option("--compare", help="Write without kNN as well.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Colour the words and list their sources.")
    ] = False,
    sources: Annotated[int, typer.Option("--sources", help="Sources listed with --explain.")] = 12,
    k: options.K = None,
    lmbda: options.Lmbda = None,
    temperature: options.Temperature = None,
    nprobe: options.Nprobe = None,
    refine: options.Refine = False,
    num_beams: Annotated[int, typer.Option("--num-beams", help="Beams, 1 for greedy.")] = 1,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample instead of taking the likeliest.")
    ] = False,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Nucleus of the sampling.")] = None,
    sampling_temperature: Annotated[
        float | None, typer.Option("--sampling-temperature", help="Of the sampling.")
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Continue a text with kNN, and show which passage caused which word."""
    if max_new_tokens < 1 or num_beams < 1:
        raise ConfigError("--max-new-tokens and --num-beams must be at least 1")
    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt:
        raise ConfigError("the prompt is empty: give --prompt some text to continue")
    from knn_logits.datastore.store import Datastore
    from knn_logits.trace.trace import token_dict

    datastore = Datastore(store)
    settings: dict[str, Any] = {"do_sample": sample, "num_beams": num_beams}
    if sample and top_p is not None:
        settings["top_p"] = top_p
    if sample and sampling_temperature is not None:
        settings["temperature"] = sampling_temperature
    prepare(threads, seed)
    loaded, tokenizer = load_model(model, device, dtype)
    from knn_logits.compatibility import check_tokenizer
    from knn_logits.processor import KNNLogitsProcessor

    check_tokenizer(tokenizer, datastore)
    inputs = tokenizer(prompt, return_tensors="pt").to(loaded.device)
    length = 1 if loaded.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    settings |= {"max_new_tokens": max_new_tokens, "return_dict_in_generate": True}
    if getattr(loaded.generation_config, "pad_token_id", None) is None:
        settings["pad_token_id"] = tokenizer.pad_token_id or tokenizer.eos_token_id

    def write(**extra: Any) -> tuple[Any, str]:
        prepare(threads, seed)
        output = loaded.generate(**inputs, **settings, **extra)
        text = tokenizer.decode(output.sequences[0, length:], skip_special_tokens=True)
        return output, str(text)

    with interruptible("nothing was written"):
        without = write()[1] if compare else None
        with KNNLogitsProcessor(
            loaded,
            datastore,
            k=k,
            lmbda=lmbda,
            temperature=temperature,
            nprobe=nprobe,
            refine=refine,
            threads=threads,
        ) as knn:
            output, text = write(logits_processor=[knn])
            trace = knn.trace(output, tokenizer)
    if json:
        content: dict[str, Any] = {"prompt": prompt, "text": text}
        if without is not None:
            content["text_without_knn"] = without
        content["tokens"] = [token_dict(token) for token in trace[0].tokens]
        print_json(content)
        return
    if without is not None:
        typer.echo("--- without kNN")
        typer.echo(prompt + without)
        typer.echo("\n--- with kNN")
    if explain:
        trace.show(sources)
    else:
        typer.echo(prompt + text)
