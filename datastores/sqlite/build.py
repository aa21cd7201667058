"""Builds the datastore of SQLite's documentation that the repository carries.

python datastores/sqlite/build.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from demo import STORE
from smollm2 import load, make

from knn_logits import Document, build_datastore, read_corpus

PAGES = Path(__file__).parent / "pages"
SITE = "https://www.sqlite.org"


def documents(pages: Path = PAGES) -> Iterator[Document]:
    """The pages under their titles, with the addresses of the originals."""
    for page in read_corpus([str(pages)]):
        title = page.text.partition("\n")[0].removeprefix("# ")
        # The originals name their sections otherwise.
        places = [replace(place, fragment="") for place in page.places]
        uri = f"{SITE}/{Path(page.id).stem}.html"
        yield replace(page, title=title, uri=uri, places=places)


def main() -> None:
    store = build_datastore(
        *load(make()),
        documents(),
        STORE,
        store_keys=False,
        overwrite=True,
        license="public domain",
        source=SITE,
    )
    print(f"{store.manifest.entries:,} entries of {store.manifest.documents} documents in {STORE}")


if __name__ == "__main__":
    main()
