"""What is published beside a datastore: a recipe for transformers' `generate`, and a Space."""

import copy
import importlib

import pytest
import torch
from forked import Fork, alone_in
from hub_fixtures import emptied
from worker import NAME

import knn_logits
from knn_logits import ConfigError, KNNLogitsProcessor
from knn_logits.hub.repositories import custom_generate, space

pytest_plugins = ["hub_fixtures"]

WRITES, PAGE = "org/writes", "org/page"

GENERATE = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
model = AutoModelForCausalLM.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer(prompt, return_tensors="pt")
result = []
for recipe in recipes:
    given = {"custom_generate": recipe, "trust_remote_code": True, "max_new_tokens": 12}
    streamer = TextIteratorStreamer(tokenizer)
    output = model.generate(**inputs, **given, do_sample=False, streamer=streamer)
    off = model.generate(**inputs, **given, do_sample=False, lmbda=0.0)
    torch.manual_seed(3)
    sampled = model.generate(**inputs, **given, do_sample=True)
    result.append([output.tolist(), "".join(streamer), off.tolist(), sampled.tolist()])
"""


@pytest.fixture(scope="module")
def published_once(one_hub, owner, indexed, model_folder, tmp_path_factory):
    """What the command says, the folder of what it sent, and the Hub's repositories after it."""
    hub, tmp_path = emptied(one_hub), tmp_path_factory.mktemp("pushed")
    words = ["push", str(indexed.folder), NAME, "--custom-generate", WRITES, "--space", PAGE]
    words += ["--model", model_folder, "--keep", str(tmp_path / "kept"), "--json"]
    done = owner.command(*words)
    assert done.code == 0, done.err
    return done.json, tmp_path / "kept", copy.deepcopy(hub.repos)


@pytest.fixture
def pushed(published_once, hub):
    """A datastore, its recipe and its Space, as the command publishes them."""
    said, kept, repos = published_once
    hub.repos.update(copy.deepcopy(repos))
    return said, kept


def files_of(hub, name):
    repo = hub.repo(name)
    return repo.commits[repo.branches["main"]]


def test_generate_needs_nothing_but_the_name(
    hub, pushed, worker, model, tokenizer, indexed, model_folder
):
    said, kept = pushed
    assert [(one["repo"], one["kind"]) for one in said["beside"]] == [
        (WRITES, "model"),
        (PAGE, "space"),
    ]
    assert (
        said["revision"]
        in files_of(hub, f"models/{WRITES}")["custom_generate/generate.py"].decode()
    )
    prompt = "When error code E42"
    found = worker(
        GENERATE, folder=model_folder, prompt=prompt, recipes=[WRITES, str(kept / "model")]
    )
    inputs = tokenizer(prompt, return_tensors="pt")
    with KNNLogitsProcessor(model, indexed) as knn:
        expected = knn.generate(**inputs, max_new_tokens=12, do_sample=False)
        torch.manual_seed(3)
        sampled = knn.generate(**inputs, max_new_tokens=12, do_sample=True)
    plain = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert expected.tolist() != plain.tolist()
    for output, streamed, off, drawn in found:
        assert output == expected.tolist()
        assert streamed == tokenizer.decode(expected[0])
        assert off == plain.tolist()
        assert drawn == sampled.tolist()


def test_a_space_is_whole_and_reads_its_variables(hub, pushed, store, model_folder):
    _, kept = pushed
    folder = kept / "space"
    sent = files_of(hub, f"spaces/{PAGE}")
    assert {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()} == (
        set(sent) - {".gitattributes"}
    )
    card = sent["README.md"].decode()
    assert card.startswith("---\n")
    assert "sdk: gradio" in card
    required = sent["requirements.txt"].decode()
    assert {"gradio", "torch", "faiss-cpu"} <= {
        line.split(";")[0].split("[")[0].split(">")[0] for line in required.split()
    }
    assert "pytest" not in required

    def starts():
        alone_in(folder)
        app = importlib.import_module("app")
        import knn_logits
        import knn_logits_app

        print(knn_logits.__file__, knn_logits_app.__file__, sep="\n")
        shown = app.Library.open(app.MODEL, app.DATASTORES)
        print(shown.name, *shown.stores)

    with Fork(starts, MODEL=model_folder, DATASTORES=str(store.folder)) as done:
        out, errors = done.ended()
    assert done.returncode == 0, errors
    package, page, shown = out.splitlines()
    assert package == str(folder / "knn_logits" / "__init__.py")
    assert page == str(folder / "knn_logits_app" / "__init__.py")
    assert shown == f"tiny {store.name}"


def test_what_is_given_stands_in_the_code_as_a_string():
    evil = 'x"; import os; os.system("id") #'
    code = custom_generate("org/name", evil).files["custom_generate/generate.py"].decode()
    names = {}
    exec(code.partition("# The latest")[0].partition("import lru_cache")[2].replace(
        "from knn_logits import Datastore, KNNLogitsProcessor, Memory", ""), names)  # fmt: skip
    assert names["DATASTORE"] == evil
    code = space("org/page", evil, ["org/one", "org/two"]).files["app.py"].decode()
    compile(code, "app.py", "exec")
    assert f"or {evil!r}" in code
    assert "'org/one org/two'" in code


def test_mistakes_are_one_line(run, indexed, tmp_path):
    for words, said in (
        (["--space", PAGE], "--space and --model must be used together"),
        (["--model", "gpt2"], "--space and --model must be used together"),
        (["--custom-generate", "nonsense"], "use org/name"),
        (["--custom-generate", "org/name@main"], "use org/name"),
        (["--keep", tmp_path], "--keep needs"),
    ):
        done = run("push", indexed.folder, NAME, *words)
        assert (done.code, len(done.err.splitlines())) == (1, 1)
        assert said in done.err
    with pytest.raises(ConfigError, match="without spaces"):
        space("org/page", "gpt2", ["two words"])


def test_a_dry_run_writes_what_would_be_sent(run, indexed, tmp_path):
    done = run.good(
        "push", indexed.folder, NAME, "--dry-run", "--custom-generate", WRITES, "--keep", tmp_path
    )
    assert f"3 files would be sent to https://huggingface.co/{WRITES}" in done.out
    assert (tmp_path / "model" / "custom_generate" / "generate.py").is_file()


def test_the_recipe_takes_the_settings_of_a_processor(model, tokenizer, store):
    code = custom_generate("org/name", "org/data").files["custom_generate/generate.py"].decode()
    names = {}
    exec(code, names)
    inputs = tokenizer("When error code E42", return_tensors="pt")
    writing = {**inputs, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    given = {"k": 64, "suffix_weight": 1e4}
    found = names["generate"](
        model, datastore=str(store.folder), knn_temperature=100.0, **given, **writing
    )
    for settings, same in ((given, True), ({"k": 64}, False)):
        with knn_logits.KNNLogitsProcessor(model, store, temperature=100.0, **settings) as knn:
            expected = knn.generate(**writing)
        assert torch.equal(found, expected) is same
