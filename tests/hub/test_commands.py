"""`pull`, `push` and a name in the place of a folder, in processes that know this Hub alone."""

from worker import NAME

pytest_plugins = ["hub_fixtures"]


def test_push_pull_and_generate(hub, owner, worker, run, indexed, model_folder):
    revision = owner.command("push", indexed.folder, NAME).out.split()[-1]
    assert revision == hub.repo(NAME).branches["main"]

    pulled = worker.command("pull", NAME).out.strip()
    assert pulled.startswith(f"{NAME}@{revision}: ")
    folder = pulled.rpartition("; ")[2]

    words = ["generate", model_folder, "STORE", "--prompt", "When error code E42", "--json"]
    words += ["--max-new-tokens", "6", "--threads", "1"]
    mine = run(*[indexed.folder if word == "STORE" else word for word in words]).json
    # Nothing is asked of the Hub: what is in the cache is enough.
    name = f"{NAME}@{revision}"
    words = [name if word == "STORE" else word for word in words]
    hub.requests.clear()
    theirs = worker.command(*words).json
    assert hub.requests == []
    for one in (mine, theirs):
        for token in one["tokens"]:
            rival = token["by_memory"] or {"document": {"store": NAME}}
            for named in (*token["neighbors"], *token["documents"], rival["document"]):
                assert named.pop("store") in (NAME, "indexed")
    assert mine == theirs
    assert run("verify", folder, "--json").json["ok"]
    assert run("info", folder, "--json").json["revision"] == revision


def test_what_is_no_name_of_the_hub_is_refused(run, indexed):
    for words in (("pull", "nonsense"), ("push", indexed.folder, "nonsense")):
        assert "use org/name" in run.refused(*words).line
