"""A model with its datastores as clients see it: under which names, and what it can be given."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from knn_logits import ConfigError, Datastore, Memory, pair_tokenizer
from knn_logits_serve.asked import Asked, Prompt, Sampling
from knn_logits_serve.bodies import ChatBody, CompletionBody, Knn
from knn_logits_serve.chat import Chat
from knn_logits_serve.refusals import Refusal

# What a completion writes where nobody says how much: OpenAI's number.
_COMPLETION_TOKENS = 16


class Served:
    """A model, its tokenizer and its datastores, opened once for all requests.

    Args:
        name: What clients call the model.
        model: A causal or encoder-decoder model of transformers, in evaluation mode.
        tokenizer: Its tokenizer.
        stores: Its datastores, at least one; by the names that clients read, or under their own.
        chat_template: A chat template in place of the tokenizer's.
        chat_tokens: Tokens that a chat's answer has at most where its request names no number.
        new_tokens: Tokens that any answer may have at most.
        settings: Settings of the vote that hold where a request gives none: `k`, `lmbda`,
            `temperature`, `weights` and the others; see `Memory`.

    Attributes:
        stores: The datastores by name.
        names: By a model's name, the names of the datastores that vote under it.

    Raises:
        ConfigError: when there is no datastore, or a setting is out of its range.
        MismatchError: when a datastore belongs to another model.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        stores: Sequence[Datastore] | Mapping[str, Datastore],
        *,
        chat_template: str | None = None,
        chat_tokens: int = 256,
        new_tokens: int = 4096,
        **settings: Any,
    ) -> None:
        if not stores:
            raise ConfigError("name at least one datastore")
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.stores = dict(stores) if isinstance(stores, Mapping) else _by_name(stores)
        self.memory = Memory(model, list(self.stores.values()), threads=1, **settings)
        singles = {f"{name}+{one}": (one,) for one in self.stores}
        every = tuple(self.stores)
        self.names: Mapping[str, tuple[str, ...]] = {
            "+".join([name, *every]): every,
            **singles,
            name: (),
        }
        self.chat = Chat(tokenizer, chat_template)
        self._pairs = pair_tokenizer(model, tokenizer, next(iter(self.stores.values())))
        self._chat_tokens, self._new_tokens = chat_tokens, new_tokens
        self._cutting = threading.Lock()
        self.ends = _end_tokens(model)
        # What a tokenizer adds around texts is no word of one.
        self.silent = self.ends | set(getattr(tokenizer, "all_special_ids", ()))
        # Each datastore's index is read now, not when the first visitor asks for it.
        for one in self.stores.values():
            self.memory.over(one)

    @property
    def reads_sources(self) -> bool:
        """Whether it answers a text, as encoder-decoder models do, and does not go on with it."""
        return self._pairs is not None

    @property
    def context(self) -> int | None:
        """Tokens that the model reads at most, of an encoder-decoder model its decoder."""
        config = self.model.config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        for attribute in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
            found = getattr(text, attribute, None)
            if isinstance(found, int) and found > 0:
                return found
        return None

    @property
    def generation(self) -> dict[str, Any]:
        """Arguments of `generate()` that this model always needs."""
        pad = self.tokenizer.pad_token_id
        pad = pad if pad is not None else min(self.ends, default=0)
        return {**(self._pairs.settings if self._pairs else {}), "pad_token_id": pad}

    def memory_of(self, asked: Asked) -> Memory:
        """The memory under the settings of a request; its indexes are open already.

        Raises:
            ConfigError: when no datastore that is asked has a document to exclude.
        """
        return self.memory.over([self.stores[one] for one in asked.stores], **asked.settings)

    def completion(self, body: CompletionBody) -> Asked:
        """A completion's request.

        Raises:
            Refusal: when it names what is not here, or asks for more than the model reads.
        """
        given: Any = body.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            given = [given]
        if self._pairs and body.echo:
            raise Refusal("this model answers its prompt: there is nothing to echo", param="echo")
        new_tokens = body.max_tokens if body.max_tokens is not None else _COMPLETION_TOKENS
        prompts = tuple(self._prompt(one, new_tokens) for one in given)
        if new_tokens == 0 and not body.echo:
            raise Refusal("max_tokens is 0: ask for a token, or for an echo", param="max_tokens")
        return self._asked(
            body, prompts, new_tokens, chat=False, logprobs=body.logprobs, echo=bool(body.echo)
        )

    def conversation(self, body: ChatBody) -> Asked:
        """A chat's request; errors as for `completion`."""
        if self._pairs:
            said = [one.text for one in body.messages if one.role == "user" and one.text.strip()]
            if not said:
                raise Refusal("there is no message to answer: send one", param="messages")
            text = said[-1]
        else:
            text = self.chat.text(body.messages)
        # A template has put there what else begins a text.
        special = self.chat.plain or self._pairs is not None
        wanted = body.max_completion_tokens
        wanted = wanted if wanted is not None else body.max_tokens
        if wanted == 0:
            raise Refusal("max_tokens is 0: ask for a token", param="max_tokens")
        prompt = self._prompt(text, wanted or 1, special=special)
        if wanted is None:
            written = 1 if self._pairs else prompt.tokens
            room = self._chat_tokens if self.context is None else self.context - written
            wanted = min(self._chat_tokens, self._new_tokens, room)
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._asked(body, (prompt,), wanted, chat=True, logprobs=logprobs)

    def _asked(
        self,
        body: CompletionBody | ChatBody,
        prompts: tuple[Prompt, ...],
        new_tokens: int,
        *,
        chat: bool,
        logprobs: int | None,
        echo: bool = False,
    ) -> Asked:
        stores, settings = self._lookup(body.model, body.knn)
        return Asked(
            body.model,
            chat,
            prompts,
            stores,
            settings,
            n=body.n or 1,
            new_tokens=new_tokens,
            sampling=self._sampling(body),
            stops=body.stops,
            logprobs=logprobs,
            echo=echo,
            stream=bool(body.stream),
            usage=bool(body.stream_options and body.stream_options.include_usage),
        )

    def _lookup(self, name: str, knn: Knn | bool | None) -> tuple[tuple[str, ...], dict[str, Any]]:
        if name not in self.names:
            raise Refusal(
                f"this server has no model {name[:80]!r}; ask for {', '.join(self.names)}",
                404,
                param="model",
                code="model_not_found",
            )
        stores = self.names[name]
        if knn is None:
            return stores, {}
        if isinstance(knn, bool):
            return (stores or tuple(self.stores) if knn else ()), {}
        if not knn.on:
            return (), {}
        if knn.stores is not None:
            missing = [one for one in knn.stores if one not in self.stores]
            if missing:
                raise Refusal(
                    f"this server has no datastore {missing[0][:80]!r}; ask for "
                    f"{', '.join(self.stores)}",
                    404,
                    param="knn.stores",
                )
            stores = tuple(dict.fromkeys(knn.stores))
        given = knn.model_dump(include={"lmbda", "k", "temperature", "exclude"}, exclude_none=True)
        return stores or tuple(self.stores), given

    def _sampling(self, body: CompletionBody | ChatBody) -> Sampling:
        """What the request says; for the rest what the model's own settings say."""
        own = self.model.generation_config
        sampled = bool(getattr(own, "do_sample", False))
        temperature, top_p, top_k = body.temperature, body.top_p, 0
        if temperature is None:
            default = getattr(own, "temperature", None) if sampled else None
            temperature = default or (1.0 if sampled or top_p is not None else 0.0)
        if sampled:
            top_p = top_p if top_p is not None else getattr(own, "top_p", None)
            top_k = getattr(own, "top_k", None) or 0
        bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
        words = int(self.model.get_output_embeddings().weight.shape[0])
        if any(token >= words for token in bias):
            raise Refusal(
                f"a token id is too large: the model has {words:,} tokens", param="logit_bias"
            )
        return Sampling(
            temperature,
            top_p if top_p is not None else 1.0,
            top_k,
            random.SystemRandom().getrandbits(62) if body.seed is None else body.seed,
            body.presence_penalty or 0.0,
            body.frequency_penalty or 0.0,
            bias,
        )

    def _prompt(self, given: str | list[int], new_tokens: int, *, special: bool = True) -> Prompt:
        if new_tokens > self._new_tokens:
            raise Refusal(
                f"{new_tokens:,} new tokens are asked for; this server writes "
                f"{self._new_tokens:,} at most",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if self._pairs:
            return self._source(given, new_tokens)
        if isinstance(given, str):
            ids = self._cut(given, special=special)
            text = given
        else:
            words = int(self.model.get_input_embeddings().weight.shape[0])
            if max(given) >= words:
                raise Refusal(
                    f"a token id is too large: the model has {words:,} tokens", param="prompt"
                )
            ids = list(given)
            text = str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        self._check_room(len(ids), new_tokens)
        if not ids:
            raise Refusal("the prompt is empty: write something first", param="prompt")
        tensor = torch.tensor([ids], device=self.model.device)
        inputs = {"input_ids": tensor, "attention_mask": torch.ones_like(tensor)}
        return Prompt(inputs, ids, len(ids), text)

    def _source(self, given: str | list[int], new_tokens: int) -> Prompt:
        """What an encoder reads."""
        assert self._pairs is not None
        if not isinstance(given, str):
            raise Refusal("this model needs a text as its prompt, not tokens", param="prompt")
        if not given.strip():
            raise Refusal("the prompt is empty: write something first", param="prompt")
        tokens = len(self._cut(self._pairs.source_prefix + given))
        limit = self._pairs.source_limit
        if limit is not None and tokens > limit:
            raise Refusal(
                f"the text has {tokens:,} tokens; the model reads {limit:,}: shorten it",
                param="prompt",
                code="context_length_exceeded",
            )
        opening = list(self._pairs.opening)
        self._check_room(len(opening), new_tokens)
        with self._cutting:
            inputs = self._pairs.inputs([given], self.model.device)
        return Prompt(inputs, opening[:1], tokens, given)

    def _cut(self, text: str, *, special: bool = True) -> list[int]:
        # A fast tokenizer refuses two threads at a time.
        with self._cutting:
            found = self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        return list(found)

    def _check_room(self, prompt_tokens: int, new_tokens: int) -> None:
        context = self.context
        if context is not None and prompt_tokens + new_tokens > context:
            raise Refusal(
                f"{prompt_tokens:,} tokens of text and {new_tokens:,} new ones are more than the "
                f"{context:,} that the model reads: shorten one of them",
                param="max_tokens" if prompt_tokens < context else None,
                code="context_length_exceeded",
            )


def _by_name(stores: Sequence[Datastore]) -> dict[str, Datastore]:
    found: dict[str, Datastore] = {}
    for store in stores:
        title = store.name
        for number in itertools.count(2):
            if title not in found:
                break
            title = f"{store.name}-{number}"
        found[title] = store
    return found


def _end_tokens(model: Any) -> set[int]:
    found = getattr(model.generation_config, "eos_token_id", None)
    if found is None:
        return set()
    return set(found) if isinstance(found, (list, tuple)) else {int(found)}
