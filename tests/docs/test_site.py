"""The site's parts say what the code says: made pages, figures, lists, and the README's bounds."""

from pathlib import PurePosixPath

import yaml

import knn_logits.errors
from docs.pages import DOCS, ROOT, blocks_of
from knn_logits.cli.app import command as command_line
from knn_logits.store import layout


def test_the_readme_is_short_and_begins_with_its_title():
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.startswith("# knn-logits\n")
    assert len(text.splitlines()) <= 110
    assert len(text.split()) <= 1000


def test_every_page_has_a_place_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = set(pages_in(config["nav"]))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert there <= listed
    made = {one for one in listed - there if not one.startswith("repository/")}
    assert made == {"reference/command-line.md"}
    assert config["theme"]["font"] is False  # a page loads nothing from elsewhere


def pages_in(part):
    if isinstance(part, str):
        yield part
        return
    for one in part.values() if isinstance(part, dict) else part:
        yield from pages_in(one)


def test_the_command_lines_page_has_every_command_and_option(hook):
    text = hook("docs/hooks/command_line.py").page()
    for name, command in command_line.commands.items():
        section = text.partition(f"\n## knn-logits {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for one in command.params:
            if one.param_type_name == "option":
                for option in (*one.opts, *one.secondary_opts):
                    assert f"`{option}" in section, (name, option)


def test_the_figures_are_those_that_the_script_draws(hook):
    figures = hook("docs/figures/draw.py").FIGURES
    drawn = {f"{name}.svg" for name in figures}
    assert {path.name for path in (DOCS / "figures").glob("*.svg")} == drawn
    for name, draw in figures.items():
        assert (DOCS / "figures" / f"{name}.svg").read_text("utf-8") == draw().svg(), (
            f"{name}.svg: python docs/figures/draw.py"
        )
    layers = (DOCS / "figures" / "layers.svg").read_text("utf-8")
    modules = {
        path.stem for path in (ROOT / "knn_logits").iterdir() if not path.stem.startswith("_")
    }
    assert not [name for name in modules - {"py"} if name not in layers]


def test_the_pages_list_what_the_code_has():
    errors = (DOCS / "reference" / "errors.md").read_text("utf-8")
    for name in vars(knn_logits.errors):
        if name.endswith("Error") and name not in ("KNNLogitsError", "DatastoreError"):
            assert f"| `{name}` |" in errors, name
    (folder,) = [
        block.code
        for block in blocks_of("docs/reference/formats.md")
        if block.language == "text" and "datastore.json" in block.code
    ]
    listed = {PurePosixPath(line.split()[0]).name for line in folder.splitlines()}
    for kind in layout.KINDS:
        assert layout.file_name(kind, shard=0 if kind == "keys" else None) in listed


def test_each_benchmark_has_its_command_and_each_result_its_page():
    text = (DOCS / "benchmarks.md").read_text("utf-8")
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py")} - {"common.py"}
    assert not [name for name in scripts if f"benchmarks/{name}" not in text]
    everywhere = "".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    results = {path.name for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert not [name for name in results if f"results/{name}" not in everywhere]


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == knn_logits.__version__
    assert citation["license"] == "Apache-2.0"
    papers = {one["url"] for one in citation["references"]}
    listed = (DOCS / "researchers.md").read_text("utf-8")
    assert all(f"({url})" in listed for url in papers)


def test_the_table_of_settings_is_made_of_their_declarations(hook):
    made = hook("docs/hooks/settings_table.py")
    text = made.PAGE.read_text("utf-8")
    assert text == made.with_table(text), "run python docs/hooks/settings_table.py"
