"""`knn-logits explain MODEL STORE... TEXT` and `trace MODEL STORE TEXT`: sources of a text."""

from __future__ import annotations

from typing import Any

from knn_logits.cli.bars import interruptible
from knn_logits.cli.loading import Run, load_tokenizer, open_datastore, text_or_file
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Json, Model, Store, Stores, argument, command
from knn_logits.cli.terminal import Output, doing, print_json, say
from knn_logits.errors import ConfigError
from knn_logits.printable import one_line
from knn_logits.settings.declaration import setting

# Maximum number of sources that are listed.
SOURCES = 12


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
    from knn_logits.evidence.render import show
    from knn_logits.evidence.trace import token_dict

    doing("looking for passages")
    with interruptible("nothing was written"), opened.searching():
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
