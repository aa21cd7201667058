"""The backend of FAISS: inverted files, and graphs, which are made anew at each opening."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from knn_logits.arrays import Array
from knn_logits.errors import ConfigError
from knn_logits.index import plain_arrays
from knn_logits.index.backend import Backend, Keys
from knn_logits.index.choice import choose_train_size
from knn_logits.index.demand import check_building, fewest_keys, is_allowed
from knn_logits.index.faiss_backend import FaissIndex, build_faiss, to_gpu
from knn_logits.index.faiss_library import faiss_module, inverted_file, make_empty
from knn_logits.settings.config import IndexConfig

# Only an index that needs more keys than this makes it worth knowing how many there are.
_LARGE_SAMPLE = 1 << 20
# Number of keys that are read at once, as float32, while an index is filled.
_KEYS_AT_ONCE = 65_536
# An index without inverted lists is trained on as many keys as one with this number.
_LISTS = 256


class FaissBackend(Backend):
    """An index that FAISS makes of a factory string."""

    extends = True

    @staticmethod
    def takes(factory: str) -> bool:
        """See `Backend.takes`. What FAISS cannot make is refused by `check`."""
        return is_allowed(factory)

    @cached_property
    def _empty(self) -> Any:
        return make_empty(self.factory, self.dim, self.metric)

    @cached_property
    def _ivf(self) -> Any:
        return inverted_file(self._empty)

    def check(self, keys: int | None) -> None:
        needed = fewest_keys(self.factory)
        if keys is not None and needed > keys:
            raise ConfigError(
                f"the index {self.factory!r} needs at least {needed:,} training keys, but there "
                f"are only {keys:,}; use --index with fewer lists, or auto, or exact"
            )
        # FAISS allocates all lists at once. The number of keys is checked again later.
        if keys is not None or needed <= _LARGE_SAMPLE:
            make_empty(self.factory, self.dim, self.metric)

    def check_cost(self, entries: int, train_size: int | None) -> None:
        check_building(self.factory, self.dim, entries, train_size)

    @property
    def has_arrays(self) -> bool:
        return plain_arrays.has_plain_form(self._empty)

    def threads(self, threads: int | None) -> int | None:
        """See `Backend.threads`. FAISS's own number is that of this thread, not of a new one."""
        return threads or int(faiss_module().omp_get_max_threads())

    def _train_size(self, entries: int) -> int:
        return choose_train_size(entries, _LISTS if self._ivf is None else int(self._ivf.nlist))

    def build(
        self, keys: Keys, config: IndexConfig, threads: int | None, device: torch.device | str
    ) -> FaissIndex:
        size = config.train_size
        sample = keys.sample(self._train_size(keys.size) if size is None else size)
        index = build_faiss(self.factory, self.dim, self.metric, sample, keys.batches(), threads)
        index.nprobe = config.nprobe
        return index

    def to_arrays(self, index: Any) -> dict[str, Array] | None:
        return plain_arrays.to_arrays(index) if plain_arrays.has_plain_form(index.raw) else None

    def from_arrays(
        self,
        arrays: Mapping[str, Array],
        size: int,
        *,
        retained: Array | None = None,
        nprobe: int | None = None,
        threads: int | None = None,
    ) -> FaissIndex:
        return plain_arrays.from_arrays(
            arrays,
            self.factory,
            self.dim,
            self.metric,
            size,
            retained=retained,
            nprobe=nprobe,
            threads=threads,
        )

    def moved(self, index: Any, device: torch.device) -> FaissIndex:
        return to_gpu(index, device)

    def file_bytes(self, entries: int) -> int:
        ivf = self._ivf
        if not self.has_arrays:
            return 0
        if ivf is None:
            return int(entries * self._empty.sa_code_size())
        lists = int(ivf.nlist)
        learned = 4 * self.dim * (lists + (int(ivf.pq.ksub) if hasattr(ivf, "pq") else 2))
        return int(entries * (int(ivf.code_size) + 8) + learned + 8 * lists)
