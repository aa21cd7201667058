"""A model with its datastores, as clients see it. `Served` checks requests against the model."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from knn_logits import Datastore, Memory, text_ids
from knn_logits.errors import ConfigError
from knn_logits.hosting import PromptReader, context_length
from knn_logits_app.decoding import end_tokens
from knn_logits_app.library import Reopening
from knn_logits_serve.bodies import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    GenerationRequest,
    Message,
    Prompt,
    Refusal,
    Sampling,
    TraceBody,
    too_long,
)
from knn_logits_serve.messages import Chat, ordered

# The numbers of tokens that are written by default, as with OpenAI for a completion.
_COMPLETION_TOKENS, _CHAT_TOKENS = 16, 256


class Served:
    """A model, its tokenizer and its datastores, opened once for all requests."""

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        stores: Mapping[str, Datastore],
        *,
        asks: bool = False,
        **settings: Any,
    ) -> None:
        if getattr(model.config, "is_encoder_decoder", False):
            raise ConfigError(
                "the server continues texts, and this is an encoder-decoder model: use `knn-logits "
                "generate`, or `knn-logits app`"
            )
        if any(hasattr(part, "_torchdynamo_orig_callable") for part in model.modules()) or any(
            getattr(part, "_compiled_call_impl", None) for part in model.modules()
        ):
            raise ConfigError(
                "the server attaches a memory for each request, which a compiled model would have "
                "to be compiled again for: pass the model before torch.compile"
            )
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.stores = dict(stores)
        self.memory = Memory(model, self.stores, threads=1, **settings)
        self._memory_settings, self._reopening = settings, Reopening()
        every = tuple(self.stores)
        # The datastores that vote, by the name of the model that a client asks for.
        self.names: Mapping[str, tuple[str, ...]] = {
            "+".join([name, *every]): every,
            **{f"{name}+{store}": (store,) for store in every},
            name: (),
        }
        self.chat = Chat(tokenizer)
        self.asks = asks
        self.context = context_length(model)
        self.prompts = PromptReader(model)
        self._cutting = threading.Lock()
        self.ends = end_tokens(model)
        # Special tokens are not part of the text.
        self.silent = self.ends | set(getattr(tokenizer, "all_special_ids", ()))
        # Each datastore's index is read now, so that the first request does not wait for it.
        for store in self.stores.values():
            self.memory.over(store)

    def memory_of(self, request: GenerationRequest) -> Memory:
        """Returns the memory with the settings of a request. Its indexes are open already."""
        reopened = self._reopening(self.model, self.stores, **self._memory_settings)
        if reopened is not None:
            self.stores, self.memory = reopened
        stores = {name: self.stores[name] for name in request.stores}
        return self.memory.over(stores, **request.settings)

    def completion(self, body: CompletionBody) -> GenerationRequest:
        contents: Any = body.prompt
        if isinstance(contents, str) or isinstance(contents[0], int):
            contents = [contents]
        new_tokens = body.max_tokens if body.max_tokens is not None else _COMPLETION_TOKENS
        prompts = tuple(self._prompt(prompt, new_tokens) for prompt in contents)
        if new_tokens == 0 and not body.echo:
            raise Refusal("max_tokens is 0: ask for a token, or for an echo", param="max_tokens")
        return self._request(
            body, prompts, new_tokens, chat=False, logprobs=body.logprobs, echo=bool(body.echo)
        )

    def conversation(self, body: ChatBody) -> GenerationRequest:
        messages = ordered(body.messages)
        requested = body.max_completion_tokens
        requested = requested if requested is not None else body.max_tokens
        if body.logprobs:
            line = "a chat has no logprobs: ask for a completion"
            raise Refusal(line, param="logprobs")
        if requested == 0:
            raise Refusal("max_tokens is 0: ask for a token", param="max_tokens")
        room = None
        if self.context is not None:
            usual = min(_CHAT_TOKENS, self.context // 2)
            room = self.context - (requested or usual)
        with self._cutting:
            text = self.chat.prompt(messages, room)
        prompt = self._prompt(text, requested or 1)
        last = messages[-1]
        if last.role != "assistant":
            words = None if self.chat.plain else last.text
            prompt = replace(prompt, message=words, opens=True)
        if requested is None:
            room = _CHAT_TOKENS if self.context is None else self.context - len(prompt.ids)
            requested = min(_CHAT_TOKENS, room)
        request = self._request(body, (prompt,), requested, chat=True)
        return self._asked(body, messages, request)

    def _asked(
        self, body: ChatBody, messages: list[Message], request: GenerationRequest
    ) -> GenerationRequest:
        """Asks the documents, where the request or the server says so and where it is possible."""
        *before, last = messages
        can = bool(request.stores) and last.role == "user"
        if body.ask and not can:
            raise Refusal("ask needs a datastore and a last message of the user", param="ask")
        if not can or not (self.asks if body.ask is None else body.ask):
            return request
        with self._cutting:
            history = self.chat.history(before)
        return replace(request, question=last.text, history=tuple(history))

    def _request(
        self,
        body: GenerationBody,
        prompts: tuple[Prompt, ...],
        new_tokens: int,
        *,
        chat: bool,
        logprobs: int | None = None,
        echo: bool = False,
    ) -> GenerationRequest:
        stores = self.stores_of(body.model, "model")
        if body.knn and not stores:
            best = next(iter(self.names))
            raise Refusal(f"{body.model} has no datastore: ask for {best}", param="knn")
        return GenerationRequest(
            body,
            chat,
            prompts,
            () if body.knn is False else stores,
            body.knn if isinstance(body.knn, dict) else {},
            new_tokens=new_tokens,
            sampling=self._sampling(body),
            logprobs=logprobs,
            echo=echo,
        )

    def stores_of(self, name: str, param: str | None = None) -> tuple[str, ...]:
        """The datastores that vote under a model's name."""
        if name not in self.names:
            raise Refusal(
                f"this server has no model {name[:80]!r}: ask for {', '.join(self.names)}",
                404,
                param=param,
                code="model_not_found",
            )
        return self.names[name]

    def _sampling(self, body: GenerationBody) -> Sampling:
        """Returns the request's sampling settings. The model's own settings are the defaults."""
        defaults = self.model.generation_config
        sampled = bool(getattr(defaults, "do_sample", False))
        temperature, top_p, top_k, min_p = body.temperature, body.top_p, body.top_k, body.min_p
        if temperature is None:
            default = getattr(defaults, "temperature", None) if sampled else None
            drawn = sampled or any(limit is not None for limit in (top_p, top_k, min_p))
            temperature = default or (1.0 if drawn else 0.0)
        if sampled:
            top_p = top_p if top_p is not None else getattr(defaults, "top_p", None)
            top_k = top_k if top_k is not None else getattr(defaults, "top_k", None)
            min_p = min_p if min_p is not None else getattr(defaults, "min_p", None)
        return Sampling(
            temperature,
            top_p if top_p is not None else 1.0,
            max(0, top_k or 0),
            min_p or 0.0,
            random.SystemRandom().getrandbits(62) if body.seed is None else body.seed,
        )

    def _prompt(self, content: str | list[int], new_tokens: int) -> Prompt:
        if isinstance(content, str):
            ids = self._cut(content)
            text = content
        else:
            words = int(self.model.get_input_embeddings().weight.shape[0])
            if max(content) >= words:
                raise Refusal(
                    f"the prompt has a token id that is too large: the model has {words:,} tokens",
                    param="prompt",
                )
            ids = list(content)
            text = str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        if self.context is not None and len(ids) + new_tokens > self.context:
            raise too_long(
                f"{len(ids):,} tokens of text plus {new_tokens:,} new tokens exceed the model's "
                f"context of {self.context:,}: shorten the text, or ask for fewer new tokens",
                "max_tokens" if len(ids) < self.context else None,
            )
        if not ids:
            raise Refusal("the prompt is empty: write something first", param="prompt")
        return Prompt(ids, text)

    def trace(self, body: TraceBody) -> dict[str, Any]:
        """The longest spans of a text in each datastore, without the model."""
        how = {"min_tokens": body.min_tokens, "documents": body.documents}
        names = self.stores_of(body.model, "model")
        with self._cutting:
            spans = {
                name: [
                    one.to_dict()
                    for one in self.stores[name].trace(body.text, self.tokenizer, **how)
                ]
                for name in names
            }
        return {"object": "trace", "model": body.model, "stores": spans}

    def _cut(self, text: str) -> list[int]:
        # A fast tokenizer fails when two threads use it at the same time.
        with self._cutting:
            return text_ids(self.tokenizer, text)
