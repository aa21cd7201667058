"""Small models, a tokenizer and datastores that tests share. Nothing here needs a network."""

import copy
import importlib
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Read when PyTorch and FAISS are loaded. Threads for such small numbers cost more than they bring,
# most of all where other tests run beside these.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# These modules hold assertions too; their failures should show the values.
pytest.register_assert_rewrite("corpus_files", "mixture_reference")

# The same examples each time, so that a red run is a change's own; "explore" looks for new ones.
settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

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
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keeps what the tests find out about their datastores out of the user's cache."""
    os.environ["KNN_LOGITS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tokenizer():
    """A byte-level BPE of 384 tokens, trained on the spot."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TEXTS * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )


def make_gpt2(seed=0, layers=2, width=32, vocabulary=384, **settings):
    """A GPT-2 with random weights, large enough that its states differ from token to token."""
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
    """The model that the shared datastore belongs to. Never change it; hooks must come off."""
    return make_gpt2()


@pytest.fixture(scope="session")
def store(model, tokenizer, tmp_path_factory):
    """An exact datastore of `TEXTS`, the documents' ids "0" to "7"."""
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
    )


def make_marian(seed=0, layers=2, width=32, vocabulary=384, **settings):
    """A Marian with random weights, whose decoder's states differ with the source."""
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
    """The encoder-decoder model that the datastore of pairs belongs to. Never change it."""
    return make_marian()


@pytest.fixture(scope="session")
def pair_tokenizer():
    """A byte-level BPE of 384 tokens that ends a text with </s>, as encoder-decoder models do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([text for pair in PAIRS for text in pair] * 4, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>", pad_token="<pad>")


def pair_documents():
    """`PAIRS` as documents, their ids "p0" to "p7"."""
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
    """The encoder-decoder model and its tokenizer, saved. Never change the folder."""
    folder = tmp_path_factory.mktemp("models") / "marian"
    make_marian().save_pretrained(folder)
    pair_tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory):
    """Where the demo's datastores are built once, for its own tests and for those of the page."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture
def short_training(monkeypatch):
    """Trains gates for a tenth of the steps: for tests of what is done with a gate."""
    from knn_logits.gating import fitting

    whole = fitting.trained
    monkeypatch.setattr(
        fitting,
        "trained",
        lambda *given, steps, **settings: whole(*given, steps=steps // 10, **settings),
    )


@pytest.fixture
def mine(model):
    """A model of the test's own, with the weights that the datastore knows."""
    return copy.deepcopy(model)


@pytest.fixture(scope="session")
def model_folder(tokenizer, tmp_path_factory):
    """The model and its tokenizer, saved. Never change the folder."""
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
    """A processor with the settings that the reference knows."""
    from mixture_reference import LMBDA, TEMPERATURE, K

    import knn_logits

    with knn_logits.KNNLogitsProcessor(
        model, store, k=K, lmbda=LMBDA, temperature=TEMPERATURE
    ) as processor:
        yield processor


@pytest.fixture(scope="session")
def memory(store):
    """The datastore's keys in float64 and its values, for the reference."""
    import numpy as np

    ids = np.arange(len(store))
    return store.keys(ids).astype(np.float64), store.values.numpy()


@pytest.fixture
def development_data():
    """The folder of development data, for tests marked `shared`."""
    folder = os.environ.get("KNN_LOGITS_DEV_DATA")
    if not folder:
        pytest.skip("KNN_LOGITS_DEV_DATA names no folder of development data")
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line in this process: `run("info", folder).out`."""
    import logging

    from commands import call

    # The command line says warnings in its own way; the next test hears them as before.
    logger = logging.getLogger("knn_logits")
    before = logger.handlers, logger.propagate
    yield lambda *args: call(monkeypatch, capsys, *args)
    logger.handlers, logger.propagate = before


@pytest.fixture(scope="module")
def scripts():
    """Each of the demo's modules by its name; gone from `sys.modules` afterwards."""
    demo = Path(__file__).parents[1] / "datastores" / "demo"
    names = [file.stem for file in demo.glob("*.py")]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(demo))
        yield {name: importlib.import_module(name) for name in names}
        for name in names:
            sys.modules.pop(name, None)
