"""Adds the named endpoints for `gradio_client`, plain HTTP and MCP.

The endpoints are functions without a state. Each has a check that runs before the queue: a request
that is not allowed is answered with one line and the status 400.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import gradio as gr
from gradio.events import api as add_endpoint

from knn_logits import main_sources, settings_for
from knn_logits_app import page_parts
from knn_logits_app.page_parts import Server
from knn_logits_app.requests import (
    MOST_PASSAGES,
    SETTINGS,
    Lookup,
    Writing,
    friendly,
    lookup_of,
    text_of,
    whole,
    writing_of,
)
from knn_logits_app.session import Answer
from knn_logits_app.work import MOST_MEASURED, Kind, to_measure

# The most sources in a summary.
_SUMMED = 3
_REQUIRED = inspect.Parameter.empty
Values = Mapping[str, Any]


class Parameter(NamedTuple):
    """An argument of an endpoint. gradio shows only the first line of its help."""

    name: str
    kind: Any
    default: Any
    help: str


_STORES = Parameter(
    "stores", list[str] | None, None,
    "Names of the datastores to search; default: the first datastore.",
)  # fmt: skip
_SETTINGS = [
    Parameter(
        name, setting.annotation | None, None,
        f"{setting.help} Range: {setting.range}. Default: the datastore's setting.",
    )
    for name, setting in settings_for("page").items()
]  # fmt: skip
_PASSAGES = Parameter("max_neighbors", int, 3, "The most passages that are named for each token.")
_GENERATE = [
    Parameter(
        "prompt", str, _REQUIRED,
        "The text to continue, or the source of an encoder-decoder model.",
    ),
    _STORES,
    Parameter("knn", bool, True, "Whether to use the memory."),
    Parameter("compare", bool, False, "Whether to write a text without kNN as well."),
    *_SETTINGS,
    Parameter("new_tokens", int, 60, "The most tokens to write."),
    Parameter("sample", bool, False, "Whether to sample tokens, or take the likeliest ones."),
    Parameter("sampling_temperature", float, 1.0, "Temperature of the sampling."),
    Parameter("top_p", float, 1.0, "The probability mass that is sampled from (nucleus sampling)."),
    Parameter("seed", int, 0, "Seed of the sampling."),
    _PASSAGES,
]  # fmt: skip


class Endpoints:
    """The functions of the endpoints. They take the values of a request by name."""

    def __init__(self, server: Server) -> None:
        self._server, self._session = server, server.session
        self._library = server.session.library

    def _run(self, kind: Kind, *arguments: Any) -> Any:
        deadline = self._session.limits.deadline()
        return self._server.work.result(kind, {}, deadline, *arguments)

    def lookup(self, values: Values) -> Lookup:
        lookup = lookup_of(
            values["stores"] or [next(iter(self._library.stores))],
            {name: values[name] for name in SETTINGS},
            max_neighbors=whole(values.get("max_neighbors", 1), "max_neighbors", 1, MOST_PASSAGES),
        )
        self._session.stores(lookup)
        return lookup

    def writing(self, values: Values) -> Writing:
        names = ("compare", "new_tokens", "sample", "sampling_temperature", "top_p", "seed")
        lookup = self.lookup(values) if values["knn"] is not False else None
        settings = {name: values[name] for name in names}
        writing = writing_of(values["prompt"], lookup, **settings)
        self._session.check_writing(writing)
        return writing

    def generate(self, values: Values) -> dict[str, Any]:
        """Writes a text, and names the passages behind each token."""
        answers = self._run("write", self.writing(values))
        answer = answers.get("knn") or answers["lm"]
        content: dict[str, Any] = {"prompt": values["prompt"], "text": answer.text}
        # Without kNN there is only the text of the model alone.
        if values["compare"]:
            content["text_without_knn"] = answers["lm"].text
        return {**content, "summary": summary(answer), "tokens": tokens_of(answer)}

    def explained(self, values: Values) -> tuple[str, str | None, Lookup]:
        """Checks a request to explain a text, which has a source if the model reads one."""
        source = text_of(values["source"], "source") if "source" in values else None
        lookup, text = self.lookup(values), text_of(values["text"])
        self._library.reader.check_text(text, source, self._session.limits)
        return text, source, lookup

    def explain(self, values: Values) -> dict[str, Any]:
        """Names the passages that support each token of a text."""
        text, source, lookup = self.explained(values)
        answer = self._run("explain", text, lookup, source)
        content = {"text": text, "summary": summary(answer), "tokens": tokens_of(answer)}
        return content if source is None else {"source": source, **content}

    def measured(self, values: Values) -> tuple[str, str | None, Lookup]:
        """Checks a request to measure a text, or targets of sources."""
        lookup = self.lookup(values)
        if "sources" in values:
            to_measure(self._session, values["targets"], values["sources"])
            return values["targets"], values["sources"], lookup
        return text_of(values["text"], most=MOST_MEASURED), None, lookup

    def evaluate(self, values: Values) -> dict[str, Any]:
        """Measures a text without and with kNN."""
        text, sources, lookup = self.measured(values)
        return asdict(self._run("measure", text, lookup, sources))

    def datastores(self, _: Values) -> list[dict[str, Any]]:
        """Lists the datastores by name, with their sizes and settings."""
        return [
            {
                "name": name,
                "documents": store.manifest.documents,
                "entries": store.manifest.entries,
                **store.manifest.settings.model_dump(),
            }
            for name, store in self._library.stores.items()
        ]


def add_api(page: Any, server: Server) -> None:
    """Adds the endpoints to a page that is being built."""
    endpoints = Endpoints(server)
    lookup = [_STORES, *_SETTINGS]
    source = Parameter("source", str, _REQUIRED, "The source that the model reads.")
    text = Parameter("text", str, _REQUIRED, "A text of at least two tokens.")
    measured = Parameter(
        "text", str, _REQUIRED, "A text, preferably one that the datastores do not contain."
    )
    explain, evaluate = [text], [measured]
    if server.session.library.reader.sources:
        explain = [source, text._replace(help="The target of the source, such as its translation.")]
        evaluate = [
            Parameter(name, str, _REQUIRED, f"The {name}, one on each line.")
            for name in ("sources", "targets")
        ]

    def add(
        run: Any, check: Callable[[Values], Any], about: str, parameters: Sequence[Parameter]
    ) -> None:
        function = typed(run, about, parameters)
        endpoint = add_endpoint(function, api_name=run.__name__, concurrency_id="model")
        names = [parameter.name for parameter in parameters]
        page.fns[endpoint["id"]].validator = page_parts.validator(
            lambda *values: check(dict(zip(names, values, strict=True)))
        )

    about = (
        "Continue a text with kNN, and name the passages behind each token.\n\nAn encoder-decoder "
        "model, such as a translation model, takes the prompt as the source."
    )
    add(endpoints.generate, endpoints.writing, about, _GENERATE)
    about = "Name the passages that support each token of a text that exists already."
    add(endpoints.explain, endpoints.explained, about, [*explain, *lookup, _PASSAGES])
    about = "Measure the perplexity of a text without and with kNN, and under a grid of λ and τ."
    add(endpoints.evaluate, endpoints.measured, about, [*evaluate, *lookup])
    function = typed(endpoints.datastores, endpoints.datastores.__doc__ or "", [])
    add_endpoint(function, api_name="datastores", concurrency_limit=None)


def typed(run: Any, about: str, parameters: Sequence[Parameter]) -> Callable[..., Any]:
    """Gives a function of values by name the signature that gradio reads; an error is a line."""

    def call(*args: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*args, **keywords)
            bound.apply_defaults()
            return run(bound.arguments)
        except Exception as error:
            raise gr.Error(friendly(error), print_exception=False) from None

    signature = inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind
            )
            for name, kind, default, _ in parameters
        ],
        return_annotation=inspect.signature(run, eval_str=True).return_annotation,
    )
    lines = [f"    {name}: {help}" for name, _, _, help in parameters]
    call.__doc__ = "\n".join([about, *(["", "Args:", *lines] if lines else [])])
    call.__annotations__ = {name: kind for name, kind, _, _ in parameters}
    call.__annotations__["return"] = signature.return_annotation
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__name__ = run.__name__
    return call


def summary(answer: Answer) -> str:
    """Says in a sentence or two what the memory did for an answer, and names its sources."""
    if answer.trace is None:
        return "The model wrote alone."
    sequence = answer.trace[0]
    meanings = Counter(token.meaning for token in sequence.tokens)
    line = f"Of {len(sequence.tokens)} tokens the memory changed {meanings['changed']}, agreed to "
    line += f"{meanings['agreed']} and contradicts {meanings['contradicted']}."
    quotes = [
        f"“{source.words.strip()}” is from {source.document.title or source.document.document}"
        f" ({source.document.store})"
        for source in main_sources(sequence, _SUMMED)
    ]
    if quotes:
        line += f" {'; '.join(quotes)}."
    if sequence.alone:
        line += " Nothing is near: the model alone wrote this."
    elif sequence.near is False:
        line += " The memory holds nothing like the text that was given."
    if sequence.unknown:
        line += f" {sequence.unknown_line}."
    return line


def tokens_of(answer: Answer) -> list[dict[str, Any]]:
    """Returns an answer's tokens with neighbors, as `knn-logits generate --json` prints them."""
    if answer.trace is None:
        return []
    tokens: list[dict[str, Any]] = answer.trace.to_dict()["sequences"][0]["tokens"]
    return tokens


def json_for_tools(page: Any) -> None:
    """Makes the tools of MCP answer with JSON, where gradio would answer with Python's `repr`."""
    tools = getattr(page, "mcp_server_obj", None)
    if tools is None:
        return
    postprocess = tools.postprocess_output_data

    def as_json(data: Any, *args: Any) -> Any:
        texts = [
            json.dumps(part, ensure_ascii=False) if isinstance(part, (dict, list)) else part
            for part in data
        ]
        return postprocess(texts, *args)

    tools.postprocess_output_data = as_json
