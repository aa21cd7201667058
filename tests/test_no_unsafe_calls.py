"""Nothing that runs or unpickles what a file says is called anywhere outside the tests."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("knn_logits", "datastores", "benchmarks", "app")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
NAMES = {"eval", "exec", "compile", "__import__"}
METHODS = {
    "torch.load",
    "torch.hub.load",
    "numpy.lib.format.read_array",
    "np.lib.format.read_array",
    "pd.read_pickle",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
}
# FAISS's own format; an object's `load` under any name can be torch's.
ENDINGS = {"read_index", "read_index_binary", "deserialize_index", "deserialize_index_binary"}
ENDINGS |= {"read_VectorTransform", "read_InvertedLists", "read_ProductQuantizer"}


def dotted(node):
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def unsafe(source, name="x.py"):
    """What a source calls or imports that it must not, as (line, what)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, one.name) for one in node.names if top(one.name) in MODULES]
        elif isinstance(node, ast.ImportFrom):
            if top(node.module or "") in MODULES:
                found.append((node.lineno, node.module))
            names = {f"{node.module}.{one.name}" for one in node.names}
            found += [(node.lineno, one) for one in names if is_unsafe(one, name)]
        elif isinstance(node, (ast.Attribute, ast.Name)) and is_unsafe(dotted(node), name):
            found.append((node.lineno, dotted(node)))
        elif isinstance(node, ast.keyword):
            value = getattr(node.value, "value", None)
            if node.arg in ("allow_pickle", "trust_remote_code", "shell") and value is not False:
                found.append((node.value.lineno, node.arg))
            if node.arg == "weights_only" and value is not True:
                found.append((node.value.lineno, node.arg))
        elif isinstance(node, ast.Constant) and node.value in MODULES:
            found.append((node.lineno, node.value))
    return found


def top(module):
    return module.split(".")[0]


def is_unsafe(name, file):
    last = name.split(".")[-1]
    if last in ENDINGS:
        # It imports indexes of other systems, and checks what it reads.
        return file != "knn_logits/index/faiss_library.py"
    return name in NAMES or name in METHODS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_runs_or_unpickles_what_a_file_says(path):
    assert unsafe(path.read_text(), str(path.relative_to(ROOT))) == []


def test_all_sources_are_looked_at():
    names = {str(path.relative_to(ROOT)) for path in SOURCES}
    assert {"knn_logits/store/datastore.py", "benchmarks/index.py"} <= names


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import dill.source",
        "import torch\ntorch.load(x)",
        "from torch import load",
        "eval('1')",
        "f = exec",
        "np.load(x, allow_pickle=True)",
        "np.load(x, allow_pickle=value)",
        "faiss.read_index(name)",
        "faiss_module().deserialize_index(x)",
        "from faiss import read_index",
        "importlib.import_module('pickle')",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "subprocess.run(x, shell=True)",
    ],
)
def test_what_is_unsafe_is_found(source):
    assert unsafe(source)


@pytest.mark.parametrize(
    "source",
    [
        "np.load(x, allow_pickle=False)",
        "ast.literal_eval(x)",
        "model.eval()",
        "re.compile(x)",
        "json.load(x)",
        "safe_open(x)",
    ],
)
def test_what_is_not_unsafe_is_left_alone(source):
    assert not unsafe(source)
