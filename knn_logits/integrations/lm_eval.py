"""Evaluates a model with its datastore in lm-evaluation-harness, as the model type "knn".

    python -m knn_logits.integrations.lm_eval --model knn \
        --model_args pretrained=MODEL,datastore=STORE --tasks TASK

An `HFLM` scores by plain forward passes, in which a processor of `generate()` takes no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from knn_logits.engine.forward import evaluating
from knn_logits.engine.windows import Piece
from knn_logits.errors import ConfigError
from knn_logits.generation.processor import KNNLogitsProcessor
from knn_logits.measure.bench import open_bench
from knn_logits.measure.perplexity import searched
from knn_logits.mixture.presets import MixtureSettings, generation_settings
from knn_logits.settings.registry import settings_for

Request = tuple[tuple[str, str] | None, list[int], list[int]]


@register_model("knn")
class KNNLM(HFLM):  # type: ignore[misc]
    """A causal model that scores and generates with kNN.

    Args:
        pretrained: The model's id or folder, or a model of transformers.
        datastore: A datastore or its folder, or a list of them, which are searched as one.
        batch_size: Texts that are generated together. Scoring chooses its batches itself.
        settings: `preset`, `k`, `lmbda`, `temperature`, `retomaton` and the other settings that
            `Memory` explains; all other arguments are those of `HFLM`.

    Raises:
        ConfigError: when a setting is out of its range, or the model is no causal model.
        MismatchError: when another model built the datastore.
    """

    def __init__(
        self, pretrained: Any, datastore: Any, *, batch_size: int | str | None = 1, **settings: Any
    ) -> None:
        names = {*settings_for(), *MixtureSettings.__annotations__}
        asked = {name: settings.pop(name) for name in [*settings] if name in names}
        super().__init__(pretrained, batch_size=batch_size, **settings)
        if self.backend != "causal":
            raise ConfigError("lm-evaluation-harness scores causal models only")
        self._bench = open_bench(self.model, self.tokenizer, datastore, **asked)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[Request],
        disable_tqdm: bool = False,
        override_bs: int | None = None,  # noqa: ARG002
    ) -> list[tuple[float, bool]]:
        """Sums log p of each continuation, and tells whether greedy search would write it."""
        pieces: list[Piece] = []
        firsts: list[int] = []
        first = 0
        for _, context, continuation in requests:
            tokens = np.array([*context, *continuation][-self.max_length - 1 :], np.int32)
            # The first token has nothing before it that could predict it.
            scored = min(len(continuation), len(tokens) - 1)
            pieces.append(Piece(tokens, len(tokens) - 1 - scored, first))
            firsts.append(first)
            first += len(tokens)
        sums, greedy = np.zeros(len(pieces)), np.ones(len(pieces), bool)
        bench, hidden = self._bench, disable_tqdm or self.rank != 0
        bar = tqdm(total=sum(len(one[2]) for one in requests), disable=hidden, desc="tokens")
        with bar, evaluating(bench.model):
            for tokens_of_pass, neighbors in searched(bench, pieces):
                assert bench.memory is not None
                assert neighbors is not None
                owners = np.searchsorted(firsts, tokens_of_pass.places, side="right") - 1
                for rows, log_p_lm in tokens_of_pass.distributions.parts():
                    found = bench.memory.with_occurrences(
                        neighbors[rows], tokens_of_pass.prefixes[rows]
                    )
                    log_p = bench.memory.vote(found, log_p_lm).log_p.cpu()
                    targets = tokens_of_pass.targets[rows]
                    chosen = log_p.gather(-1, targets.unsqueeze(-1))[:, 0]
                    np.add.at(sums, owners[rows], chosen.double().numpy())
                    np.logical_and.at(greedy, owners[rows], (log_p.argmax(-1) == targets).numpy())
                bar.update(len(owners))
        results = list(zip(sums.tolist(), greedy.tolist(), strict=True))
        for (texts, _, _), result in zip(requests, results, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, result)
        return results

    def _model_generate(
        self, context: Any, max_length: int, stop: list[str], **generation_kwargs: Any
    ) -> Any:
        memory = self._bench.memory
        assert memory is not None
        settings = {**generation_settings(memory.stores[0]), **generation_kwargs}
        with KNNLogitsProcessor(self.model, memory, record=False) as knn:
            return super()._model_generate(
                context, max_length, stop, logits_processor=[knn], **settings
            )


if __name__ == "__main__":
    cli_evaluate()
