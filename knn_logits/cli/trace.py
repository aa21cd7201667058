"""`knn-logits trace MODEL STORE TEXT`."""

from __future__ import annotations

from knn_logits.cli.loading import load_tokenizer, open_datastore, text_or_file
from knn_logits.cli.options import Json, Model, Store, argument, command
from knn_logits.cli.terminal import doing, print_json, say, tell
from knn_logits.errors import ConfigError
from knn_logits.printable import one_line
from knn_logits.settings.declaration import setting


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

    check_tokenizer(tokenizer, opened)
    if opened.suffixes is None:
        tell(f"sorting the text: `knn-logits index {opened.folder} --suffixes` does it once")
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
    say(f"{share:.0%} of the text is in the documents, in spans of {min_tokens} tokens or more")
