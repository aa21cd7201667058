"""Adds the named endpoints for `gradio_client`, plain HTTP and MCP.

The endpoints are typed functions without a state. Each has a check that runs before the queue. A
request that is not allowed is answered with one line and the status 400. The docstrings of the
endpoints are shown to callers. gradio shows only the first line of an argument's description.
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

# The most passages of a token that a request may ask for, and the most sources in a summary.
MOST_PASSAGES, _SUMMED = 20, 3


def add_api(page: Any, server: Server) -> None:
    """Adds the endpoints to a page that is being built.

    Args:
        page: The page.
        server: The models and visitors that the endpoints work with.
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

        An encoder-decoder model, such as a translation model, takes the prompt as the source.

        Args:
            prompt: The text to continue, or the source of an encoder-decoder model.
            stores: Names of the datastores to search; default: the first datastore.
            knn: Whether to use the memory.
            compare: Whether to write a text without kNN as well.
            k: Neighbors of each query; default: the datastore's setting.
            lmbda: Weight of the neighbors, from 0 to 1; default: the datastore's setting.
            temperature: Temperature of the neighbors' softmax, above 0; default: the datastore's.
            new_tokens: The most tokens to write.
            sample: Whether to sample tokens. Otherwise the likeliest token is taken.
            sampling_temperature: Temperature of the sampling.
            top_p: The probability mass that is sampled from (nucleus sampling).
            seed: Seed of the sampling.
            max_neighbors: The most passages that are named for each token.
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
        # Without kNN there is only the text of the model alone.
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
        """Name the passages that support each token of a text that exists already.

        Args:
            text: A text of at least two tokens.
            stores: Names of the datastores to search; default: the first datastore.
            k: Neighbors of each query; default: the datastore's setting.
            lmbda: Weight of the neighbors, from 0 to 1; default: the datastore's setting.
            temperature: Temperature of the neighbors' softmax, above 0; default: the datastore's.
            max_neighbors: The most passages that are named for each token.
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
        """Name the passages that support each token of a target, such as a translation.

        Args:
            source: The source that the model reads.
            text: The target of the source, such as its translation.
            stores: Names of the datastores to search; default: the first datastore.
            k: Neighbors of each query; default: the datastore's setting.
            lmbda: Weight of the neighbors, from 0 to 1; default: the datastore's setting.
            temperature: Temperature of the neighbors' softmax, above 0; default: the datastore's.
            max_neighbors: The most passages that are named for each token.
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
            text: A text, preferably one that the datastores do not contain.
            stores: Names of the datastores to search; default: the first datastore.
            k: Neighbors of each query; default: the datastore's setting.
            lmbda: Weight of the neighbors, from 0 to 1; default: the datastore's setting.
            temperature: Temperature of the neighbors' softmax, above 0; default: the datastore's.
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
        """Measure the perplexity of targets, given their sources, without and with kNN.

        Args:
            sources: The sources that the model reads, one on each line.
            targets: The targets, one on each line, preferably some that are not in the datastores.
            stores: Names of the datastores to search; default: the first datastore.
            k: Neighbors of each query; default: the datastore's setting.
            lmbda: Weight of the neighbors, from 0 to 1; default: the datastore's setting.
            temperature: Temperature of the neighbors' softmax, above 0; default: the datastore's.
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

    # Both kinds of model have the same endpoints, but the endpoints take other arguments.
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
    """Says in a sentence or two what the memory did for an answer, and names its sources."""
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
    if sequence.unknown:
        line += f" {sequence.unknown_line}."
    return line


def json_for_tools(page: Any) -> None:
    """Makes the tools of MCP answer with JSON. gradio would answer with Python's `repr`.

    Args:
        page: The page, once it is served.
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
    """Wraps a function so that its errors become the one line that a visitor is shown."""
    from functools import wraps

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as error:
            raise gr.Error(friendly(error), print_exception=False) from None

    return call


def tokens_of(answer: Answer) -> list[dict[str, Any]]:
    """Returns an answer's tokens with neighbors, as `knn-logits generate --json` prints them."""
    if answer.trace is None:
        return []
    tokens: list[dict[str, Any]] = answer.trace.to_dict()["sequences"][0]["tokens"]
    return tokens
