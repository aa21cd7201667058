"""Attaches a memory to the host's current model, and shows the sources of its last answer.

Everything that belongs to a model is stored on the model itself. So it goes away when the host
unloads the model, and this module keeps no model alive. The module does not know of the host's
pages.
"""

from __future__ import annotations

import html
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

_ATTRIBUTE = "_knn_logits_attached"
_RETOMATON = {"on": True, "off": False}
# How many of the latest steps are compared with the answer, to find its tokens.
_STEPS = 64


class Watched:
    """A logits processor that changes nothing, and records the tokens so far.

    No processor sees the last token of an answer. It is found from the answer's text.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Any] = {}

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Records the text so far, int64 [rows, length]."""
        self.steps[input_ids.shape[-1]] = input_ids
        return scores


class OnModel:
    """The data that is stored on a model: its memory, and the processor of its last answer."""

    def __init__(self, key: Any, memory: Any, stores: Any) -> None:
        self.key = key
        self.memory = memory
        self.stores = stores
        self.knn: Any = None
        self.watched: Watched | None = None
        self.start = 0
        self.text = ""
        self.tokenizer: Any = None

    def close(self) -> None:
        """Removes the hooks from the model."""
        if self.knn is not None:
            self.knn.close()
            self.knn = None


class Attached:
    """The memory of the model that the host runs.

    Args:
        params: The extension's settings, which the panel changes.
        tell: Writes a line to the host's log.
    """

    def __init__(self, params: Mapping[str, Any], tell: Callable[[str], None]) -> None:
        self._params = params
        self._say = tell
        self._lock = threading.Lock()
        self._told: str | None = None
        self._model: Any = lambda: None
        self._problem = ""

    def begin(self, model: Any, tokenizer: Any) -> None:
        """Logs once, before an answer, why kNN cannot work."""
        del tokenizer
        problem = self._refusal(model) if self._params["activate"] else ""
        if problem:
            self._tell(problem)

    def processors(self, model: Any, tokenizer: Any, input_ids: Any) -> list[Any]:
        """Returns the logits processors of one answer. There are none if kNN is off or fails.

        Args:
            model: The host's model.
            tokenizer: The tokenizer of the model.
            input_ids: int64 [1, tokens], the prompt.
        """
        if not self._params["activate"]:
            return []
        with self._lock:
            problem = self._refusal(model)
            if not problem:
                try:
                    on_model = self._attach(model)
                    on_model.close()
                    on_model.knn = _knn(model, on_model.memory)
                except Exception as error:
                    # The host continues without kNN, whatever the error is.
                    problem = _line(error)
            self._tell(problem)
            if problem:
                return []
            on_model.watched, on_model.text = Watched(), ""
            on_model.start, on_model.tokenizer = int(input_ids.shape[-1]), tokenizer
            return [on_model.knn, on_model.watched]

    def written(self, text: str) -> None:
        """Takes an answer, in the HTML form in which the host shows it."""
        on_model = self._of(self._model())
        if on_model is not None:
            on_model.text = html.unescape(text)

    def changed(self) -> None:
        """Forgets the last problem, since a setting changed. It is logged again if it remains."""
        self._told = None
        self._problem = ""

    def status(self, model: Any, tokenizer: Any) -> str:
        """Returns the line of the panel, as HTML."""
        del tokenizer
        if not self._params["activate"]:
            line = "kNN is off."
        else:
            line = self._refusal(model) or self._problem
            line = line or "kNN is on. The next answer opens the datastore."
            on_model = self._of(model)
            if not self._problem and on_model is not None and on_model.key == self._key():
                config = on_model.memory.config
                names = ", ".join(store.name for store in on_model.stores)
                line = (
                    f"kNN is on: {names}, λ {config.lmbda:g}, k {config.k}, "
                    f"τ {config.temperature:g}, RetoMaton {'on' if config.retomaton else 'off'}."
                )
        return f"<p>{html.escape(line)}</p>"

    def sources_html(self) -> str:
        """Returns the last answer with its sources as a frame, or says why there is none."""
        on_model = self._of(self._model())
        if on_model is None or on_model.knn is None or on_model.watched is None:
            return "<p>No answer was written with kNN yet.</p>"
        try:
            trace = _trace(on_model)
        except Exception as error:
            return f"<p>{html.escape(_line(error))}</p>"
        if trace is None:
            return "<p>The sources of the last answer are not known: write another answer.</p>"
        from knn_logits_serve.frame import frame

        page = frame(trace, on_model.stores[0].manifest.metric)
        return (
            '<iframe sandbox="allow-scripts" title="Where the words come from" '
            'style="width:100%;height:420px;border:0" '
            f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
        )

    def _of(self, model: Any) -> OnModel | None:
        found: OnModel | None = getattr(model, "__dict__", {}).get(_ATTRIBUTE)
        return found

    def _key(self) -> tuple[Any, ...]:
        names = ("datastore", "lmbda", "k", "temperature", "retomaton")
        return tuple(str(self._params[name]).strip() for name in names)

    def _refusal(self, model: Any) -> str:
        """Returns why kNN cannot work now, or an empty string."""
        if not str(self._params["datastore"]).strip():
            return "kNN is off: name a datastore, a folder or org/name on the Hub"
        if model is None:
            return "kNN is off: no model is loaded yet"
        from transformers import PreTrainedModel

        kind = type(model)
        # The host's own wrappers look like models of transformers, but do not run in PyTorch.
        if not isinstance(model, PreTrainedModel) or kind.__module__.startswith("modules."):
            return (
                f"kNN is off: the loader of this model ({kind.__name__}) gives no hidden states. "
                "Load the model with the Transformers loader"
            )
        return ""

    def _attach(self, model: Any) -> OnModel:
        key, found = self._key(), self._of(model)
        if found is not None and found.key == key:
            return found
        from knn_logits import Datastore, Memory

        named = [one.strip() for one in key[0].split(",") if one.strip()]
        settings = {
            "lmbda": _number("λ", key[1], float),
            "k": _number("k", key[2], int),
            "temperature": _number("τ", key[3], float),
            "retomaton": _RETOMATON.get(key[4]),
        }
        if found is not None:
            found.close()
        known = found is not None and found.key[0] == key[0]
        # If only settings changed, the model is not checked against the datastores again.
        stores = found.stores if found is not None and known else None
        stores = stores or [Datastore.from_pretrained(one) for one in named]
        memory = Memory(model, stores, threads=1, check=not known, **settings)
        on_model = OnModel(key, memory, stores)
        setattr(model, _ATTRIBUTE, on_model)
        self._model = weakref.ref(model)
        return on_model

    def _tell(self, problem: str) -> None:
        self._problem = problem
        if problem and problem != self._told:
            self._say(problem)
        self._told = problem


def _knn(model: Any, memory: Any) -> Any:
    from knn_logits import KNNLogitsProcessor

    return KNNLogitsProcessor(model, memory, candidates=5)


def _trace(on_model: OnModel) -> Any:
    """Returns the trace of the last answer; None if its tokens are not known."""
    import torch

    assert on_model.watched is not None
    tokenizer, steps = on_model.tokenizer, on_model.watched.steps
    text = on_model.text
    for length in sorted(steps, reverse=True)[:_STEPS]:
        ids = steps[length]
        if ids.shape[0] != 1 or length < on_model.start:
            return None
        said = str(tokenizer.decode(ids[0, on_model.start :], skip_special_tokens=True))
        rest = _after(text, said)
        if text and rest is None:
            continue  # This step was a draft that was rejected.
        last = tokenizer(rest, add_special_tokens=False)["input_ids"] if rest else []
        if len(last) == 1:
            ids = torch.cat([ids, ids.new_tensor([last])], dim=-1)
        if ids.shape[-1] == on_model.start:
            return None
        return on_model.knn.trace(ids, tokenizer, max_neighbors=3)[0]
    return None


def _after(text: str, said: str) -> str | None:
    """Returns the text after a beginning; None if the text does not begin with it."""
    bare = said.lstrip()
    for whole, start in ((text, said), (text.lstrip(), bare)):
        if whole.startswith(start):
            return whole[len(start) :]
    return None


def _number(name: str, value: str, kind: Any) -> Any:
    if value == "":
        return None
    try:
        return kind(value)
    except ValueError:
        from knn_logits import ConfigError

        raise ConfigError(
            f"{name} is not a number ({value!r}): leave it empty for the datastore's setting"
        ) from None


def _line(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"kNN is off: {reason}"
