"""The named endpoints, for `gradio_client`, plain HTTP and MCP: typed functions without a state.

Each has a check that runs before the queue: a request that is not allowed is answered with the
status 400 and one line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import gradio as gr
from gradio.events import api as add_endpoint

from knn_logits import main_sources
from knn_logits_app import layout
from knn_logits_app.measuring import MOST_CHARACTERS, to_measure
from knn_logits_app.requests import Lookup, Writing, lookup_of, text_of, whole, writing_of
from knn_logits_app.session import Answer, friendly

if TYPE_CHECKING:
    from knn_logits_app.layout import Server

# Passages that may be asked for, and sources that a summary names.
MOST_PASSAGES, _SUMMED = 20, 3


def add_api(page: Any, server: Server) -> None:
    """Adds the endpoints to a page that is being built.

    Args:
        page: The page.
        server: What they work with.
    """
    session = server.session
    library = session.first
    first = next(iter(library.stores))

    def asked(stores: Any, k: Any, lmbda: Any, temperature: Any, passages: Any = None) -> Lookup:
        lookup = lookup_of(stores or [first], k, lmbda, temperature, lmbda is None)
        session.stores(library, lookup)
        if passages is None:
            return lookup
        return replace(lookup, max_neighbors=whole(passages, "max_neighbors", 1, MOST_PASSAGES))

    def wanted_of(
        prompt: Any, stores: Any, knn: Any, compare: Any, k: Any, lmbda: Any, temperature: Any,
        new_tokens: Any, sample: Any, sampling_temperature: Any, top_p: Any, seed: Any,
        max_neighbors: Any,
    ) -> Writing:  # fmt: skip
        wanted = writing_of(
            prompt,
            asked(stores, k, lmbda, temperature, max_neighbors) if knn is not False else None,
            compare=compare,
            new_tokens=new_tokens,
            sample=sample,
            sampling_temperature=sampling_temperature,
            top_p=top_p,
            seed=seed,
        )
        session.check_writing(library, wanted)
        return wanted

    def generate(
        prompt: str,
        stores: list[str] | None = None,
        knn: bool = True,
        compare: bool = False,
        k: int | None = None,
        lmbda: float | None = None,
        temperature: float | None = None,
        new_tokens: int = 60,
        sample: bool = False,
        sampling_temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
        max_neighbors: int = 3,
    ) -> dict[str, Any]:
        """Continue a text with kNN, and name the passages behind each token.

        An encoder-decoder model, such as one that translates, writes to the prompt instead.

        Args:
            prompt: The text to continue, or the source to write to.
            stores: Datastores to look into, by name; the first one when none is named.
            knn: Whether to look anything up.
            compare: Write without kNN as well.
            k: Neighbors a query; the datastore's setting when not given, as for the next two.
            lmbda: Weight of the neighbors, from 0 to 1.
            temperature: Of the softmax over the neighbors, above 0.
            new_tokens: Tokens to write, at most.
            sample: Draw tokens instead of taking the likeliest.
            sampling_temperature: Of the drawing.
            top_p: Nucleus of the drawing.
            seed: Of the drawing.
            max_neighbors: Passages named for a token.
        """
        wanted = wanted_of(
            prompt, stores, knn, compare, k, lmbda, temperature, new_tokens, sample,
            sampling_temperature, top_p, seed, max_neighbors,
        )  # fmt: skip
        answers: dict[str, Answer] = {}
        for frame in server.work.write(library, wanted, session.limits.deadline(), {}):
            answers = frame
        answer = answers.get("knn") or answers["lm"]
        content: dict[str, Any] = {"prompt": prompt, "text": answer.text}
        # Without kNN the one text is both.
        if compare:
            content["text_without_knn"] = answers["lm"].text
        content["summary"] = summary(answer)
        content["tokens"] = tokens_of(answer)
        return content

    def explained(source: str | None, text: Any, *how: Any) -> dict[str, Any]:
        answer = server.work.explain(library, text_of(text), asked(*how), {}, source)
        content = {"text": text, "summary": summary(answer), "tokens": tokens_of(answer)}
        return content if source is None else {"source": source, **content}

    def explain(
        text: str,
        stores: list[str] | None = None,
        k: int | None = None,
        lmbda: float | None = None,
        temperature: float | None = None,
        max_neighbors: int = 3,
    ) -> dict[str, Any]:
        """Name the passages that speak for each token of a text that exists already.

        Args:
            text: Any text of at least two tokens.
            stores: Datastores to look into, by name; the first one when none is named.
            k: Neighbors a query; the datastore's setting when not given, as for the next two.
            lmbda: Weight of the neighbors, from 0 to 1.
            temperature: Of the softmax over the neighbors, above 0.
            max_neighbors: Passages named for a token.
        """
        return explained(None, text, stores, k, lmbda, temperature, max_neighbors)

    def explain_pair(
        source: str,
        text: str,
        stores: list[str] | None = None,
        k: int | None = None,
        lmbda: float | None = None,
        temperature: float | None = None,
        max_neighbors: int = 3,
    ) -> dict[str, Any]:
        """Name the passages that speak for each token of what was written to a source.

        Args:
            source: What the model reads.
            text: What was written to it, such as its translation.
            stores: Datastores to look into, by name; the first one when none is named.
            k: Neighbors a query; the datastore's setting when not given, as for the next two.
            lmbda: Weight of the neighbors, from 0 to 1.
            temperature: Of the softmax over the neighbors, above 0.
            max_neighbors: Passages named for a token.
        """
        how = (stores, k, lmbda, temperature, max_neighbors)
        return explained(text_of(source, "source"), text, *how)

    def evaluate(
        text: str,
        stores: list[str] | None = None,
        k: int | None = None,
        lmbda: float | None = None,
        temperature: float | None = None,
    ) -> dict[str, Any]:
        """Measure the perplexity of a text without and with kNN, and under a grid of λ and τ.

        Args:
            text: A text, best one that the datastores do not hold.
            stores: Datastores to look into, by name; the first one when none is named.
            k: Neighbors a query; the datastore's setting when not given, as for the next two.
            lmbda: Weight of the neighbors, from 0 to 1.
            temperature: Of the softmax over the neighbors, above 0.
        """
        lookup = asked(stores, k, lmbda, temperature)
        found = server.work.measure(library, text, lookup, session.limits.deadline(), {})
        return asdict(found)

    def evaluate_pairs(
        sources: str,
        targets: str,
        stores: list[str] | None = None,
        k: int | None = None,
        lmbda: float | None = None,
        temperature: float | None = None,
    ) -> dict[str, Any]:
        """Measure the perplexity of targets beside their sources, without and with kNN.

        Args:
            sources: What the model reads, one a line.
            targets: What was written to each, one a line; best what the datastores do not hold.
            stores: Datastores to look into, by name; the first one when none is named.
            k: Neighbors a query; the datastore's setting when not given, as for the next two.
            lmbda: Weight of the neighbors, from 0 to 1.
            temperature: Of the softmax over the neighbors, above 0.
        """
        lookup = asked(stores, k, lmbda, temperature)
        deadline = session.limits.deadline()
        return asdict(server.work.measure(library, targets, lookup, deadline, {}, sources))

    def datastores() -> list[dict[str, Any]]:
        """List the datastores by name, with their sizes and settings."""
        return [
            {
                "name": name,
                "documents": store.manifest.documents,
                "entries": store.manifest.entries,
                **store.manifest.settings.model_dump(),
            }
            for name, store in library.stores.items()
        ]

    def check_explain(text: Any, *lookup: Any) -> None:
        asked(*lookup)
        library.reading.whole(text_of(text), None, session.limits)

    def check_explain_pair(source: Any, text: Any, *lookup: Any) -> None:
        asked(*lookup)
        library.reading.whole(text_of(text), text_of(source, "source"), session.limits)

    def check_evaluate(text: Any, *lookup: Any) -> None:
        asked(*lookup)
        text_of(text, most=MOST_CHARACTERS)

    def check_evaluate_pairs(sources: Any, targets: Any, *lookup: Any) -> None:
        asked(*lookup)
        to_measure(session, library, targets, sources)

    # One name for both kinds of model; what is to be given differs.
    functions: dict[str, tuple[Any, Any]] = {
        "generate": (generate, wanted_of),
        "explain": (explain, check_explain),
        "evaluate": (evaluate, check_evaluate),
    }
    if library.reading.sources:
        functions["explain"] = explain_pair, check_explain_pair
        functions["evaluate"] = evaluate_pairs, check_evaluate_pairs
    for name, (function, check) in functions.items():
        endpoint = add_endpoint(told(function), api_name=name, concurrency_id="model")
        page.fns[endpoint["id"]].validator = layout.validator(check)
    add_endpoint(datastores, api_name="datastores", concurrency_limit=None)


def summary(answer: Answer) -> str:
    """What the memory did for an answer and where it has that from, in a sentence or two."""
    if answer.trace is None:
        return "The model wrote alone."
    sequence = answer.trace[0]
    meanings = Counter(one.meaning for one in sequence.tokens)
    line = f"Of {len(sequence.tokens)} tokens the memory changed {meanings['changed']}, agreed to "
    line += f"{meanings['agreed']} and contradicts {meanings['contradicted']}."
    said = [
        f"“{source.words.strip()}” is from {source.document.title or source.document.document}"
        f" ({source.document.store})"
        for source in main_sources(sequence, _SUMMED)
    ]
    if said:
        line += f" {'; '.join(said)}."
    if sequence.near is False:
        line += " The memory holds nothing like the text that was given."
    return line


def json_for_tools(page: Any) -> None:
    """Lets the tools of MCP answer JSON; gradio would show them what Python prints.

    Args:
        page: A page that is served.
    """
    tools = getattr(page, "mcp_server_obj", None)
    if tools is None:
        return
    shown = tools.postprocess_output_data

    def as_json(data: Any, *args: Any) -> Any:
        texts = [
            json.dumps(one, ensure_ascii=False) if isinstance(one, (dict, list)) else one
            for one in data
        ]
        return shown(texts, *args)

    tools.postprocess_output_data = as_json


def told(function: Callable[..., Any]) -> Any:
    """The function with errors as the one line that a visitor is told."""
    from functools import wraps

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:
            raise gr.Error(friendly(error), print_exception=False) from None

    return call


def tokens_of(answer: Answer) -> list[dict[str, Any]]:
    """The tokens of an answer with their neighbors, as `knn-logits generate --json` prints them."""
    if answer.trace is None:
        return []
    tokens: list[dict[str, Any]] = answer.trace.to_dict()["sequences"][0]["tokens"]
    return tokens
