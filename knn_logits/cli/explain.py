"""`knn-logits explain MODEL STORE... TEXT`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from knn_logits.cli import output_files
from knn_logits.cli.bars import interruptible
from knn_logits.cli.loading import Run, text_or_file
from knn_logits.cli.memory import MemoryOptions
from knn_logits.cli.options import Json, Model, Stores, argument, command
from knn_logits.cli.terminal import Output, doing, print_json, tell
from knn_logits.errors import ConfigError
from knn_logits.settings.declaration import setting


@dataclass(frozen=True)
class TraceOptions:
    """The files that a trace is written to."""

    save: str | None = setting(None, "Save the trace as JSON.", metavar="FILE")
    html: str | None = setting(None, "Save the highlighted text as a web page.", metavar="FILE")

    def check(self) -> None:
        """Refuses files that cannot be written, before anything is computed."""
        for path in (self.save, self.html):
            if path is not None:
                output_files.check_writable(path)

    def keep(self, trace: Any) -> None:
        for path, write in ((self.save, trace.save), (self.html, trace.save_html)):
            if path is None:
                continue
            with output_files.writing(path):
                write(path)
            tell(f"written: {path}", style=None)

    @contextmanager
    def writing(self, trace: Any) -> Iterator[None]:
        """Writes the files after the answer, even if a pipe was closed while it was printed."""
        try:
            yield
        finally:
            self.keep(trace)


@command
def explain(
    model: Model,
    stores: Stores,
    memory: MemoryOptions,
    files: TraceOptions,
    run: Run,
    text: str = argument("TEXT", "A text or a text file; - reads standard input."),
    source: str | None = setting(None, "Encoder input; TEXT is the target."),
    sources: int = setting(12, "Number of sources to list.", least=0),
    json: Json = False,
) -> None:
    """Show which passages support each word of an existing text."""
    text = text_or_file(text)
    if not text.strip():
        raise ConfigError("the text is empty: pass a text to explain")
    files.check()
    opened = memory.open(stores)
    loaded, tokenizer = run.load(model)
    from knn_logits.evidence.explanation import explain as explain_text
    from knn_logits.evidence.render import show
    from knn_logits.evidence.trace import token_dict

    doing("looking for passages")
    with interruptible("nothing was written"), opened.searching():
        settings = opened.keywords(run.threads)
        trace = explain_text(loaded, tokenizer, opened.stores, text, source=source, **settings)
    with files.writing(trace):
        if json:
            sequence = trace[0]
            content: dict[str, Any] = {
                "text": text,
                "first": sequence.prompt,
                "alone": sequence.alone,
            }
            content |= {"unchecked": list(sequence.unchecked)}
            print_json(content | {"tokens": [token_dict(token) for token in sequence.tokens]})
        else:
            show(trace, sources, Output())
