"""Builds the datastore of SQLite's documentation that the repository carries.

python datastores/sqlite/build.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from demo import STORE
from smollm2 import load, make

from knn_logits import Document, build_datastore, read_corpus
from knn_logits.measure.tuner import write_settings
from knn_logits.mixture.presets import stored_gate
from knn_logits.store.manifest import read_manifest

PAGES = Path(__file__).parent / "pages"
SITE = "https://www.sqlite.org"


def documents(pages: Path = PAGES) -> Iterator[Document]:
    """The pages under their titles, with the addresses of the originals."""
    for page in read_corpus([str(pages)]):
        title = page.text.partition("\n")[0].removeprefix("# ")
        # The originals name their sections otherwise.
        blocks = [replace(block, fragment="") for block in page.blocks]
        uri = f"{SITE}/{Path(page.id).stem}.html"
        yield replace(page, title=title, uri=uri, blocks=blocks)


def main() -> None:
    model = load(make())
    about = {"license": "public domain", "source": SITE}
    store = build_datastore(
        *model, documents(), STORE, store_keys=False, calibrate=False, overwrite=True, **about
    )
    # A gate is fitted to stored keys, which take minutes to compute and would take 33 MB here.
    with TemporaryDirectory() as scratch:
        whole = build_datastore(*model, documents(), Path(scratch) / "whole")
        record = whole.manifest
        write_settings(store, record.settings, stored_gate(whole))
    judged = read_manifest(store.folder).model_copy(update={"gate": record.gate})
    judged.write(store.folder)
    print(f"{store.manifest.entries:,} entries of {store.manifest.documents} documents in {STORE}")


if __name__ == "__main__":
    main()
