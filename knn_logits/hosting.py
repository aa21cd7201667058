"""What pages, servers and other hosts of a memory use beside the names of `knn_logits`."""

from __future__ import annotations

from knn_logits.ask.answer import PassageEffect as PassageEffect
from knn_logits.engine.forward import use_fastest_dtype as use_fastest_dtype
from knn_logits.engine.pairs import context_length as context_length
from knn_logits.engine.pieces import Pieces as Pieces
from knn_logits.engine.tokens import chat_ids as chat_ids
from knn_logits.evidence.records import DocumentShare as DocumentShare
from knn_logits.evidence.records import NeighborTrace as NeighborTrace
from knn_logits.evidence.records import SequenceTrace as SequenceTrace
from knn_logits.evidence.sources import main_sources as main_sources
from knn_logits.limits import Deadline as Deadline
from knn_logits.limits import Limits as Limits
from knn_logits.mixture.vote import Vote as Vote
from knn_logits.settings.declaration import Setting as Setting
from knn_logits.settings.registry import check_settings as check_settings
from knn_logits.settings.registry import settings_for as settings_for
from knn_logits.settings.registry import settings_line as settings_line
