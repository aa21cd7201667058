"""Keeps the entries behind each token of the latest requests, and names their documents."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from knn_logits.arrays import Array
from knn_logits.evidence.assemble import shares_by_document
from knn_logits.mixture.memory import Memory
from knn_logits.mixture.vote import Vote, influences, log_p_knn_of, mix_row

# The strongest entries that are kept of a token.
_MAX_ENTRIES = 64
# The most requests whose sources are kept, and their most tokens: 0.8 KB each.
_MAX_REQUESTS = 4096
_MAX_TOKENS = 100_000


@dataclass
class Chosen:
    """A token of a request, and what voted for it."""

    token: int
    share: float  # the share of all entries in its probability
    entries: Array  # int64 [entries]
    shares: Array  # float32 [entries]


@dataclass
class Answer:
    """The tokens that a request got so far; `memory` voted."""

    memory: Memory
    tokens: list[Chosen] = field(default_factory=list)


class Sources:
    """The sources of the latest requests."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._tokens = 0

    def note(self, memory: Memory, vote: Vote, requests: list[str], tokens: Tensor) -> None:
        """Adds a step: a vote's rows, the request of each, and its token, -1 for none."""
        chosen = tokens.clamp(min=0).to(vote.log_p_lm.device)
        weights, values = vote.log_weights, vote.neighbors.values
        log_p_lm = vote.log_p_lm.gather(-1, chosen.unsqueeze(-1))[:, 0]
        # The mixture of one token a row: `vote.log_p` would be that of the whole vocabulary.
        log_p = mix_row(log_p_lm, log_p_knn_of(weights, values, chosen), vote.lmbdas)
        shares = influences(weights, values, chosen, log_p, vote.lmbdas).cpu().numpy()
        ids = vote.neighbors.ids.cpu().numpy()
        for row, (request, token) in enumerate(zip(requests, tokens.tolist(), strict=True)):
            if token >= 0:
                voters = shares[row].nonzero()[0]
                kept = voters[shares[row, voters].argsort()[-_MAX_ENTRIES:]]
                total = float(shares[row].sum())
                one = Chosen(token, total, ids[row, kept], shares[row, kept])
                self._add(request, memory, one)

    def _add(self, request: str, memory: Memory, chosen: Chosen) -> None:
        answers = self._answers
        answers.setdefault(request, Answer(memory)).tokens.append(chosen)
        answers.move_to_end(request)
        self._tokens += 1
        while len(answers) > _MAX_REQUESTS or (len(answers) > 1 and self._tokens > _MAX_TOKENS):
            _, oldest = answers.popitem(last=False)
            self._tokens -= len(oldest.tokens)

    def of(self, request: str) -> list[dict[str, Any]]:
        """The sources of each text of an answer, by the id in vLLM's API; empty if unknown."""
        # vLLM adds the number of a prompt, of a sample, and random digits.
        name = re.compile(rf"(\d+_)?{re.escape(request)}(-\d+)?(-[0-9a-f]{{8}})?")
        return [
            {"id": answer, "tokens": [self._shown(known.memory, one) for one in known.tokens]}
            for answer, known in sorted(self._answers.items())
            if name.fullmatch(answer)
        ]

    def _shown(self, memory: Memory, chosen: Chosen) -> dict[str, Any]:
        documents = shares_by_document(memory, chosen.entries, chosen.shares)
        return {
            "token": chosen.token,
            "text": self._tokenizer.decode([chosen.token]),
            "share": round(chosen.share, 4),
            "documents": [asdict(document) for document in documents],
        }
