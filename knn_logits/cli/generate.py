"""Texts with their sources: `generate`, `explain` for one that exists, `trace` without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knn_logits.cli.loading import (
    Run,
    RunOptions,
    load_tokenizer,
    open_datastore,
    read_text,
    text_or_file,
)
from knn_logits.cli.memory import MemoryOptions, OpenStores
from knn_logits.cli.options import Json, Model, Store, Stores, argument, command
from knn_logits.cli.terminal import Output, Printed, doing, print_json, say
from knn_logits.errors import ConfigError
from knn_logits.printable import one_line
from knn_logits.settings.declaration import setting
from knn_logits.settings.registry import settings_for

if TYPE_CHECKING:
    from knn_logits.engine.pairs import PairTokenizer
    from knn_logits.generation.processor import KNNLogitsProcessor


# Maximum number of sources that are listed.
SOURCES = 12


@dataclass(frozen=True)
class DecodingOptions:
    """How tokens are chosen from the mixture's distribution."""

    max_new_tokens: int = setting(60, "Maximum number of new tokens.", least=1)
    num_beams: int = setting(1, "Number of beams; 1 is greedy search.", least=1)
    sample: bool = setting(False, "Sample instead of greedy decoding.")
    top_k: int | None = setting(None, "Sample from the N most probable tokens.", least=0)
    top_p: float | None = setting(
        None,
        "Nucleus sampling: sample from the most probable tokens up to this cumulative probability.",
        above=0,
        most=1,
    )
    sampling_temperature: float | None = setting(None, "Sampling temperature.", above=0)

    def keywords(self) -> dict[str, Any]:
        if not self.sample and (self.top_k, self.top_p, self.sampling_temperature) != (None,) * 3:
            raise ConfigError(
                "--top-k, --top-p and --sampling-temperature have no effect without --sample: "
                "add it, or remove them"
            )
        names = {"sample": "do_sample", "sampling_temperature": "temperature"}
        given = {name: value for name, value in vars(self).items() if value is not None}
        settings = {names.get(name, name): value for name, value in given.items()}
        return {"return_dict_in_generate": True, **settings}


def _inputs(
    model: Any, tokenizer: Any, opened: OpenStores, prompt: str, new_tokens: int
) -> tuple[dict[str, Any], PairTokenizer | None]:
    """Cuts the prompt, and checks that the model has room for it and the answer."""
    import torch

    from knn_logits.engine.compatibility import check_tokenizer, pair_tokenizer
    from knn_logits.engine.pairs import context_length
    from knn_logits.engine.tokens import text_ids

    check_tokenizer(tokenizer, opened.stores[0])
    pairs = pair_tokenizer(model, tokenizer, opened.stores[0])
    if pairs is not None:
        inputs, length = pairs.inputs([prompt], model.device) | pairs.settings, 1
    else:
        ids = torch.tensor([text_ids(tokenizer, prompt)], device=model.device)
        inputs, length = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids.shape[1]
        if not length:
            raise ConfigError("the prompt contains no tokens for this model: use another --prompt")
    room = context_length(model)
    if room is not None and length + new_tokens > room:
        raise ConfigError(
            f"the prompt has {length} tokens and --max-new-tokens adds {new_tokens}, which exceeds "
            f"the model's context of {room}: shorten either"
        )
    return inputs, pairs


def _text_after(tokenizer: Any, sequences: Any, length: int, pairs: PairTokenizer | None) -> str:
    """The text that a model has added to a prompt."""
    from knn_logits.engine.pieces import parts_of
    from knn_logits.engine.tokens import special_ids

    if pairs is not None:
        return pairs.texts(sequences)[0]
    ids, special = sequences[0].tolist(), special_ids(tokenizer)
    before, after = (
        [token for token in part if token not in special] for part in (ids[:length], ids[length:])
    )
    return parts_of(tokenizer, before + after, [len(before)])[1]


@command
def generate(
    model: Model,
    stores: Stores,
    memory: MemoryOptions,
    decoding: DecodingOptions,
    run: RunOptions,
    prompt: str = setting(
        ..., "Prompt, or the source for an encoder-decoder model; - reads standard input."
    ),
    compare: bool = setting(False, "Also generate without kNN."),
    explain: bool = setting(False, "Highlight words by source, and list the sources."),
    draft: bool = setting(
        True,
        "Verify several draft tokens per forward pass. Output is identical in float32; in half "
        "precision, rounding may change it.",
        option="--draft/--no-draft",
    ),
    json: Json = False,
) -> None:
    """Generate text with kNN, and show the source of each word."""
    prompt = read_text(prompt)
    if not prompt:
        raise ConfigError("the prompt is empty: pass --prompt some text to continue")
    settings = decoding.keywords()
    opened = memory.open(stores)
    loaded, tokenizer = run.load(model, opened.stores[0].folder)
    import transformers

    from knn_logits.evidence.explanation import explain as explain_text
    from knn_logits.evidence.trace import show
    from knn_logits.generation.processor import KNNLogitsProcessor

    doing("checking the datastore")
    inputs, pairs = _inputs(loaded, tokenizer, opened, prompt, decoding.max_new_tokens)

    def write(generates: Any, **arguments: Any) -> tuple[Any, str]:
        transformers.set_seed(run.seed)
        output = generates(**inputs, **settings, **arguments)
        length = inputs["input_ids"].shape[1]
        return output, _text_after(tokenizer, output.sequences, length, pairs)

    # The text is printed while it is written, unless something else is to be shown with it.
    streams = not (json or explain or compare or pairs is not None or decoding.num_beams > 1)
    with opened.searching():
        alone = write(loaded.generate)[1] if compare else None
        with KNNLogitsProcessor(loaded, opened.stores, **opened.keywords(run.threads)) as knn:
            arguments: dict[str, Any] = {}
            if streams:
                arguments["streamer"] = Printed(Output(), tokenizer, prompt=prompt)
            else:
                doing("writing")
            output, text = write(knn.generate, draft=draft, **arguments)
            if decoding.num_beams == 1:
                trace = knn.trace(output, tokenizer)
            else:
                ids, source = output.sequences[0].tolist(), None if pairs is None else prompt
                trace = explain_text(loaded, tokenizer, knn.memory, ids, source=source)
    shown = prompt if pairs is None else ""
    if json:
        texts = {"prompt": prompt, "text": text}
        texts |= {} if alone is None else {"text_without_knn": alone}
        print_json(texts | _as_json(knn, memory, trace[0]))
        return
    if alone is not None:
        say(f"--- without kNN\n{shown}{alone}\n\n--- with kNN")
    if explain:
        show(trace, SOURCES, Output())
    elif not streams:
        say(shown + text)


def _as_json(knn: KNNLogitsProcessor, memory: MemoryOptions, sequence: Any) -> dict[str, Any]:
    from knn_logits.evidence.trace import token_dict
    from knn_logits.mixture.gates.gate import gate_name

    left_out = memory.settings.get("exclude")
    content: dict[str, Any] = {} if not left_out else {"without": list(left_out)}
    reported = [name for name, declared in settings_for().items() if declared.reported]
    content |= {name: getattr(knn.config, name) for name in reported}
    content |= {"no_repeat_ngram_size": knn.loop_size or 0, "passes": knn.passes}
    if knn.gate is not None:
        content["gate"] = gate_name(knn.gate)
    content["alone"] = sequence.alone
    return content | {"tokens": [token_dict(token) for token in sequence.tokens]}


@command
def explain(
    model: Model,
    stores: Stores,
    memory: MemoryOptions,
    run: Run,
    text: str = argument("TEXT", "A text or a text file; - reads standard input."),
    source: str | None = setting(None, "Encoder input; TEXT is the target."),
    json: Json = False,
) -> None:
    """Show which passages support each word of an existing text."""
    text = text_or_file(text)
    if not text.strip():
        raise ConfigError("the text is empty: pass a text to explain")
    opened = memory.open(stores)
    loaded, tokenizer = run.load(model, opened.stores[0].folder)
    from knn_logits.evidence.explanation import explain as explain_text
    from knn_logits.evidence.trace import show, token_dict

    doing("looking for passages")
    with opened.searching():
        settings = opened.keywords(run.threads)
        trace = explain_text(loaded, tokenizer, opened.stores, text, source=source, **settings)
    if not json:
        show(trace, SOURCES, Output())
        return
    sequence = trace[0]
    content: dict[str, Any] = {"text": text, "first": sequence.prompt, "alone": sequence.alone}
    print_json(content | {"tokens": [token_dict(token) for token in sequence.tokens]})


@command
def trace(
    model: Model,
    store: Store,
    text: str = argument("TEXT", "A text or a text file; - reads standard input."),
    min_tokens: int = setting(6, "Leave out shorter spans, unless TEXT is shorter.", least=1),
    documents: int = setting(3, "Maximum number of documents to name for each span.", least=0),
    json: Json = False,
) -> None:
    """Find the longest spans of a text in the documents.

    A span is in a document verbatim. The text may come from anywhere: no model is loaded, only its
    tokenizer. A short text is counted and found as it is.
    """
    text = text_or_file(text)
    if not text.strip():
        raise ConfigError("the text is empty: pass a text to trace")
    opened = open_datastore(store)
    tokenizer = load_tokenizer(model)
    from knn_logits.engine.compatibility import check_tokenizer
    from knn_logits.engine.tokens import text_ids

    check_tokenizer(tokenizer, opened)
    doing("looking for the text")
    spans = opened.trace(text, tokenizer, min_tokens=min_tokens, documents=documents)
    covered = set().union(*(range(span.start, span.end) for span in spans))
    share = len(covered) / len(text)
    if json:
        print_json({"text": text, "share": share, "spans": [span.to_dict() for span in spans]})
        return
    for span in spans:
        times = "once" if span.count == 1 else f"{span.count:,} times"
        say(f"{one_line(span.text.strip())}  ({times})")
        for one in span.to_dict()["documents"]:
            names = (one["document"], one["title"], one["place"], one["uri"])
            say("  " + one_line(", ".join(dict.fromkeys(name for name in names if name))))
    least = min(min_tokens, len(text_ids(tokenizer, text)))
    say(f"{share:.0%} of the text is in the documents, in spans of {least} tokens or more")
