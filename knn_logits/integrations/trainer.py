"""Evaluates a model with a datastore while `transformers.Trainer` trains it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from typing import Any

from transformers import Trainer, TrainerCallback

from knn_logits.building.builder import build_datastore
from knn_logits.corpus.documents import Document
from knn_logits.engine.forward import evaluating
from knn_logits.measure.perplexity import evaluate


class KNNEvaluation(TrainerCallback):
    """Adds `eval_knn_perplexity` and `eval_knn_lm_perplexity` to each evaluation of a trainer.

        trainer.add_callback(KNNEvaluation(trainer, documents, held_out, lmbda=0.25, k=64))

    Training changes the keys, so each evaluation builds a datastore in a temporary folder. With
    `k`, `lmbda` and `temperature` given, the build does not look for settings, which is faster. The
    trainer reports the numbers wherever it reports its own, such as to trackio or W&B.

    Args:
        trainer: The trainer, whose `processing_class` is the tokenizer.
        documents: The documents of the datastore.
        texts: The text to evaluate, which is not in the documents.
        settings: `preset`, `k`, `lmbda` and the other settings that `evaluate` takes.
    """

    def __init__(
        self,
        trainer: Trainer,
        documents: Iterable[Document | str],
        texts: Iterable[Document | str],
        **settings: Any,
    ) -> None:
        self._trainer, self._settings = trainer, settings
        self._documents, self._texts = list(documents), list(texts)

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        model, tokenizer = given["model"], given["processing_class"]
        calibrate = not {"k", "lmbda", "temperature"} <= {*self._settings}
        with tempfile.TemporaryDirectory() as folder, evaluating(model):
            store = build_datastore(
                model, tokenizer, self._documents, f"{folder}/store", calibrate=calibrate
            )
            found = evaluate(model, tokenizer, store, self._texts, **self._settings)
        perplexity = found.perplexity
        # None stands for an infinite perplexity.
        numbers = {
            "eval_knn_perplexity": perplexity.interpolated or math.inf,
            "eval_knn_lm_perplexity": perplexity.lm or math.inf,
        }
        given["metrics"].update(numbers)
        self._trainer.log(numbers)
