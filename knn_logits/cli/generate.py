"""`knn-logits generate MODEL STORE... --prompt TEXT`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from knn_logits.cli import options
from knn_logits.cli.common import (
    check_trace_files,
    interruptible,
    keeping_trace,
    load_model,
    open_datastore,
    prepare,
    print_json,
    read_text,
    say,
    set_seed,
)
from knn_logits.cli.machines import partial_answers, searching, spread_indexes
from knn_logits.cli.mixture import mixture_settings
from knn_logits.errors import ConfigError

# The settings that the JSON output names.
_SHOWN = ("k", "lmbda", "temperature", "suffix_weight", "retomaton", "infini_gram")


def decoding_settings(
    num_beams: int,
    sample: bool,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    temperature: float | None = None,
    repetition_penalty: float | None = None,
    no_repeat_ngram: int | None = None,
) -> dict[str, Any]:
    """Makes the arguments for `generate()` of transformers.

    Raises:
        ConfigError: when a setting is out of its range, or has no meaning without --sample.
    """
    settings: dict[str, Any] = {"do_sample": sample, "num_beams": num_beams}
    if not sample and (top_k, top_p, temperature) != (None, None, None):
        raise ConfigError(
            "--top-k, --top-p and --sampling-temperature have no effect without --sample: add it, "
            "or leave them out"
        )
    if top_k is not None:
        settings["top_k"] = top_k
    if top_p is not None:
        if not 0.0 < top_p <= 1.0:
            raise ConfigError(f"--top-p must lie above 0 and at most at 1, not {top_p}")
        settings["top_p"] = top_p
    if temperature is not None:
        if not 0.0 < temperature < float("inf"):
            raise ConfigError(f"--sampling-temperature must be above 0, not {temperature}")
        settings["temperature"] = temperature
    if repetition_penalty is not None:
        if not 0.0 < repetition_penalty < float("inf"):
            raise ConfigError(f"--repetition-penalty must be above 0, not {repetition_penalty}")
        settings["repetition_penalty"] = repetition_penalty
    if no_repeat_ngram is not None:
        settings["no_repeat_ngram_size"] = no_repeat_ngram
    return settings


def generate(
    model: options.Model,
    stores: options.Stores,
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt",
            help="Text to continue, or the source for an encoder-decoder model; - reads standard "
            "input.",
        ),
    ],
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="The most tokens to write.")
    ] = 60,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also write the text without kNN.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Colour the words and list their sources.")
    ] = False,
    sources: Annotated[
        int, typer.Option("--sources", min=0, help="Number of sources that --explain lists.")
    ] = 12,
    preset: options.PresetOption = None,
    k: options.K = None,
    lmbda: options.Lmbda = None,
    gate: options.Gate = None,
    temperature: options.Temperature = None,
    nprobe: options.Nprobe = None,
    refine: options.Refine = False,
    retomaton: options.RetomatonOrNot = None,
    min_knns: options.MinKnns = None,
    max_knns: options.MaxKnns = None,
    pointer_weight: options.PointerWeight = None,
    suffix_weight: options.SuffixWeight = None,
    pointer_distances: options.PointerDistances = None,
    infini_gram: options.InfiniGram = None,
    without: options.Without = None,
    weights: options.Weights = None,
    native_index: options.NativeIndex = False,
    ray: options.Ray = None,
    shards: options.Shards = None,
    replicas: options.Replicas = None,
    partial: options.Partial = False,
    num_beams: Annotated[
        int, typer.Option("--num-beams", min=1, help="Number of beams; 1 is greedy search.")
    ] = 1,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample tokens instead of taking the likeliest.")
    ] = False,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=0, help="Sample among the N likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample among the likeliest tokens with this probability."),
    ] = None,
    sampling_temperature: Annotated[
        float | None,
        typer.Option("--sampling-temperature", help="Temperature of the sampling, above 0."),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            "--repetition-penalty", help="Above 1, the model avoids tokens that it has used."
        ),
    ] = None,
    no_repeat_ngram: Annotated[
        int | None,
        typer.Option(
            "--no-repeat-ngram",
            min=0,
            help="Never write N tokens in a row twice; 0 allows it. The default is the datastore's "
            "number.",
        ),
    ] = None,
    draft: Annotated[
        bool,
        typer.Option(
            "--draft/--no-draft",
            help="Verify several tokens in one forward pass; the text is the same.",
        ),
    ] = True,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    seed: options.Seed = 0,
    save: options.Save = None,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Continue a text with kNN, and show which passage caused which word."""
    prompt = read_text(prompt)
    if not prompt:
        raise ConfigError("the prompt is empty: give --prompt some text to continue")
    settings = decoding_settings(
        num_beams,
        sample,
        top_k=top_k,
        top_p=top_p,
        temperature=sampling_temperature,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram=no_repeat_ngram,
    )
    from knn_logits.evidence.plain import token_dict
    from knn_logits.mixture.presets import generation_settings

    check_trace_files(save, html)
    indexes = spread_indexes(ray, shards, replicas, partial)
    datastores = [open_datastore(store, keys=refine or bool(retomaton)) for store in stores]
    mixture = mixture_settings(locals(), datastores, scoring=False)
    settings = generation_settings(datastores[0]) | settings
    prepare(threads, seed)
    loaded, tokenizer = load_model(model, device, dtype)
    import torch

    from knn_logits.engine.compatibility import check_tokenizer, pair_tokenizer
    from knn_logits.engine.cutting import text_ids
    from knn_logits.engine.pairs import context_length
    from knn_logits.generation.processor import KNNLogitsProcessor
    from knn_logits.mixture.gates.gate import gate_name

    check_tokenizer(tokenizer, datastores[0])
    pairs = pair_tokenizer(loaded, tokenizer, datastores[0])
    if pairs is not None:
        inputs: Any = pairs.inputs([prompt], loaded.device)
        length = 1
        settings |= pairs.settings
    else:
        ids = torch.tensor([text_ids(tokenizer, prompt)], device=loaded.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        length = inputs["input_ids"].shape[1]
        if not length:
            raise ConfigError("the prompt has no token for this model: give another --prompt")
    room = context_length(loaded)
    if room is not None and length + max_new_tokens > room:
        raise ConfigError(
            f"the prompt has {length} tokens and --max-new-tokens adds {max_new_tokens}, but the "
            f"model reads {room} at most: shorten one of them"
        )
    settings |= {"max_new_tokens": max_new_tokens, "return_dict_in_generate": True}
    if getattr(loaded.generation_config, "pad_token_id", None) is None:
        pad = tokenizer.pad_token_id
        settings["pad_token_id"] = tokenizer.eos_token_id if pad is None else pad

    # The text is printed while it is written, unless something else is to be shown with it.
    streams = not (json or explain or compare or pairs is not None or num_beams > 1)

    def write(generates: Any, **more: Any) -> tuple[Any, str]:
        set_seed(seed)
        output = generates(**inputs, **settings, **more)
        if pairs is not None:
            return output, pairs.texts(output.sequences)[0]
        # Some tokenizers drop the space at the beginning of what they decode.
        whole = tokenizer.decode(output.sequences[0], skip_special_tokens=True)
        start = tokenizer.decode(output.sequences[0, :length], skip_special_tokens=True)
        return output, str(whole)[len(str(start)) :]

    with interruptible("nothing was written"), searching(indexes, datastores):
        alone = write(loaded.generate)[1] if compare else None
        with KNNLogitsProcessor(
            loaded,
            datastores,
            **mixture,
            native_index=native_index,
            indexes=indexes,
            threads=threads,
        ) as knn:
            more: dict[str, Any] = {}
            if streams:
                from knn_logits.cli.streaming import printed

                more["streamer"] = printed(prompt, tokenizer)
            output, text = write(knn.generate, draft=draft, **more)
            trace = knn.trace(output, tokenizer)
    lacking = partial_answers(indexes)
    with keeping_trace(trace, save, html):
        if json:
            content: dict[str, Any] = {"prompt": prompt, "text": text}
            if alone is not None:
                content["text_without_knn"] = alone
            if without:
                content["without"] = without
            content |= {name: getattr(knn.config, name) for name in _SHOWN}
            content["no_repeat_ngram_size"] = settings.get("no_repeat_ngram_size", 0)
            content["passes"] = knn.passes
            content |= lacking
            if knn.gate is not None:
                content["gate"] = gate_name(knn.gate)
            content["near"] = trace[0].near
            content["unknown"] = list(trace[0].unknown)
            content["tokens"] = [token_dict(token) for token in trace[0].tokens]
            print_json(content)
            return
        shown = prompt if pairs is None else ""
        if alone is not None:
            say("--- without kNN")
            say(shown + alone)
            say("\n--- with kNN")
        if explain:
            trace.show(sources)
        elif not streams:
            say(shown + text)
