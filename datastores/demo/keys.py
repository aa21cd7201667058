"""The loss that makes the model's states good keys.

It is the training with in-batch memories of Zhong et al. (2022), "Training Language Models with
Memory Augmentation": each token is predicted from the states of the other documents in the batch.
Questions are predicted from the documents' states as well, by the fact that is asked for. What no
document says has to be far from all of them: nearer than `NOTHING_NEAR` is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

KEY_TEMPERATURE = 0.05
NOTHING_NEAR = 0.6


@dataclass(frozen=True)
class States:
    """States of tokens, and what they are to find.

    Attributes:
        keys: [n, dim], the state before each token.
        target: [n], the token.
        after: [n], the token after it; 0 where the text ends, which fits any.
        segment: [n], the text it is of.
        fact: [n], the fact and the place in it, -1 where the token is of none.
    """

    keys: torch.Tensor
    target: torch.Tensor
    after: torch.Tensor
    segment: torch.Tensor
    fact: torch.Tensor

    def at(self, which: torch.Tensor) -> States:
        """Some of the tokens."""
        parts = (self.keys, self.target, self.after, self.segment, self.fact)
        return States(*(part[which] for part in parts))


def _scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    queries = functional.normalize(queries.float(), dim=-1)
    keys = functional.normalize(keys.float(), dim=-1)
    return queries @ keys.T / KEY_TEMPERATURE


def document_loss(
    states: States, judged: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Predicts each token of a document from the other documents alone.

    Half of the loss asks the neighbors for the next token, half for the next two. The next token
    alone teaches too little where it is one of few: "founded by" goes on with one of ten titles, so
    that a wrong town's founder has the right title often enough.

    Args:
        states: Tokens of documents.
        judged: bool [n], the tokens that are predicted; all of them without it.

    Returns:
        The mean loss over tokens that another text has, and how much of them memory got right.
    """
    scores = _scores(states.keys, states.keys)
    scores = scores.masked_fill(states.segment[:, None] == states.segment, -torch.inf)
    total = torch.logsumexp(scores, 1)
    one = states.target[:, None] == states.target
    after = states.after
    two = one & ((after[:, None] == after) | (after[:, None] == 0) | (after == 0))
    losses, known = [], []
    for right in (one, two):
        hit = scores.masked_fill(~right, -torch.inf)
        there = (hit > -torch.inf).any(1)
        known.append(there if judged is None else there & judged)
        losses.append((total[known[-1]] - torch.logsumexp(hit[known[-1]], 1)).mean())
    best = scores[known[0]].detach().argmax(1)
    right_ones = (states.target[best] == states.target[known[0]]).float().mean()
    return (losses[0] + losses[1]) / 2, right_ones


def question_loss(
    asked: States,
    documents: States,
    first: torch.Tensor,
    others: torch.Tensor,
    quiet_weight: float = 0.5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Finds asked facts in documents, and nothing where no document has them.

    Args:
        asked: Tokens of answers, of questions to these documents and to any other. A token of a
            document is not looked for in its own text.
        documents: What may be found.
        first: bool [asked], the first tokens of answers, where it is decided.
        others: [m, dim], keys before facts of earlier batches, which are right for no question.
        quiet_weight: How much those count that should find nothing.

    Returns:
        The loss; how many first tokens found their fact; how many of those that should find
        nothing did.
    """
    scores = _scores(asked.keys, torch.cat([documents.keys, others]))
    own = functional.pad(asked.segment[:, None] == documents.segment, (0, len(others)))
    scores = scores.masked_fill(own, -torch.inf)
    nothing = torch.full_like(scores[:, :1], NOTHING_NEAR / KEY_TEMPERATURE)
    total = torch.logsumexp(torch.cat([scores, nothing], 1), 1)
    right = (asked.fact[:, None] == documents.fact) & (asked.fact >= 0)[:, None]
    right = functional.pad(right, (0, len(others))) & ~own
    there = right.any(1)
    hit = torch.logsumexp(scores[there].masked_fill(~right[there], -torch.inf), 1)
    found = total[there] - hit
    begins = first[there]
    silent = first & ~there
    quiet = total[silent] - nothing[silent, 0]
    loss = found[begins].mean() + 0.5 * found[~begins].mean() + quiet_weight * quiet.mean()
    with torch.no_grad():
        best, nearest = scores.max(1)
        at = there & first
        good = (right[at, nearest[at]] & (best[at] > nothing[0, 0])).float().mean()
        left = (best[silent] < nothing[0, 0]).float().mean()
    return loss, good, left
