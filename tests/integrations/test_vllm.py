"""The plugin in vLLM itself, with SmolLM2: `make test-vllm`."""

import copy
import os
from pathlib import Path

import pytest
import torch

from knn_logits import Datastore, KNNLogitsError, Memory, build_datastore
from knn_logits.engine.forward import key_states_and_logits

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
vllm = pytest.importorskip("vllm", reason="make test-vllm installs it")
pytestmark = [pytest.mark.vllm, pytest.mark.instruct]

DATASTORES = Path(__file__).parents[2] / "datastores"
TEXTS = [
    "The ferry from Oldenport to Grey Island takes 45 minutes in calm weather.",
    "The ferry company was founded in 1974 by Maira Holm, a captain.",
    "The winch of the ferry needs oil of grade nine, never grade seven.",
]
PROMPTS = ["The ferry from Oldenport to Grey Island takes", "The capital of France is"]
SETTINGS = [{}, {"knn": 0}, {"knn_lmbda": 0.5, "knn_k": 4}, {"knn_exclude": ["0"]}]


KINDS = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"head_dim": 32, "sliding_window": None},
    "gemma2": {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32},
    "phi3": {"pad_token_id": 2},
}


@pytest.fixture(scope="module")
def store(instruct, tmp_path_factory):
    model, tokenizer = instruct
    folder = tmp_path_factory.mktemp("vllm") / "store"
    return build_datastore(model, tokenizer, TEXTS, folder, k=8, lmbda=0.3, calibrate=False)


@pytest.fixture(scope="module")
def llm(instruct_folder, store):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KNN_LOGITS_DATASTORE", str(store.folder))
        yield vllm.LLM(
            model=instruct_folder,
            dtype="float32",
            max_model_len=256,
            max_num_batched_tokens=20,  # longer texts are read in parts
            max_num_seqs=16,
            enforce_eager=True,
        )


def write(llm, prompts, settings, **given):
    given = {"temperature": 0, "max_tokens": 8, "logprobs": 0, "ignore_eos": True} | given
    asked = [vllm.SamplingParams(extra_args=one or None, **given) for one in settings]
    return llm.generate(prompts, asked, use_tqdm=False)


def logs_of(text):
    pairs = zip(text.logprobs, text.token_ids, strict=True)
    return torch.tensor([step[token].logprob for step, token in pairs])


@torch.no_grad()
def expected(memory, output, text):
    """The library's log p of the tokens of a text."""
    ids = torch.tensor([output.prompt_token_ids + list(text.token_ids)])
    inputs = {"input_ids": ids[:, :-1]}
    states, logits = key_states_and_logits(memory.model, memory.location, inputs)
    first = len(output.prompt_token_ids) - 1
    neighbors = memory.neighbors(states[:, first:], ids[:, :-1])
    log_p = memory.vote(neighbors, logits[0, first:].log_softmax(-1)).log_p
    return log_p.gather(-1, ids[0, first + 1 :, None])[:, 0]


def test_each_request_gets_the_librarys_mixture_under_its_settings(llm, instruct, store):
    model, _ = instruct
    prompts = [prompt for prompt in PROMPTS for _ in SETTINGS]
    settings = SETTINGS * len(PROMPTS)
    memory = Memory(model, store)
    for output, given in zip(write(llm, prompts, settings), settings, strict=True):
        values = {name[4:]: value for name, value in given.items() if name != "knn"}
        asked = memory.asked(**(values if given.get("knn", 1) else {"lmbda": 0.0}))
        (text,) = output.outputs
        torch.testing.assert_close(
            logs_of(text), expected(asked, output, text), atol=1e-3, rtol=0.0
        )


def test_several_samples_and_a_grammar(llm, instruct, store):
    from vllm.sampling_params import StructuredOutputsParams

    model, _ = instruct
    (output,) = write(llm, PROMPTS[:1], [{}], n=3, temperature=1.0, seed=1)
    memory = Memory(model, store)
    for text in output.outputs:
        torch.testing.assert_close(
            logs_of(text), expected(memory, output, text), atol=1e-3, rtol=0.0
        )
    assert len(llm.collective_rpc("knn_sources", args=(output.request_id,))[0]) == 3
    choices = ["30 minutes", "two days"]
    grammar = StructuredOutputsParams(choice=list(choices))
    (output,) = write(
        llm, PROMPTS[:1], [{}], structured_outputs=grammar, ignore_eos=False, max_tokens=16
    )
    assert output.outputs[0].text in choices


def test_the_sources_of_a_text(llm, store):
    output, without = write(llm, [PROMPTS[0]] * 2, [{}, {"knn": 0}])
    (text,) = llm.collective_rpc("knn_sources", args=(output.request_id,))[0]
    assert [one["token"] for one in text["tokens"]] == list(output.outputs[0].token_ids)
    strongest = max(text["tokens"], key=lambda one: one["share"])
    assert strongest["documents"][0]["document"] == store.documents[0].id
    assert llm.collective_rpc("knn_sources", args=(without.request_id,)) == [[]]


def test_a_wrong_setting_is_refused_and_the_engine_goes_on(llm):
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match="lmbda must lie between 0 and 1"):
        write(llm, PROMPTS[:1], [{"knn_lmbda": 3}])
    assert len(write(llm, PROMPTS, [{}, {}])) == 2


@pytest.mark.parametrize("key", ["ffn_input", "head_input"])
def test_a_datastore_built_by_vllm_has_the_keys_of_transformers(llm, instruct, key, tmp_path):
    model, tokenizer = instruct
    settings = {"calibrate": False, "k": 8, "key": key}
    wanted = build_datastore(model, tokenizer, TEXTS, tmp_path / "wanted", **settings)
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    folder = str(tmp_path / "built")
    llm.collective_rpc("knn_build", args=([str(tmp_path / "texts")], folder, settings))
    llm.reset_prefix_cache()
    built = Datastore(folder)
    assert built.manifest.model.engine == "vllm"
    assert built.values.tolist() == wanted.values.tolist()
    every = list(range(len(built)))
    keys = [torch.from_numpy(one.keys(every)).float() for one in (built, wanted)]
    torch.testing.assert_close(*keys, atol=0.05, rtol=0.01)


def test_a_datastore_of_another_model_or_key_is_refused_at_the_start(llm, instruct, tmp_path):
    model, tokenizer = instruct
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in other.model.layers:
            layer.mlp.down_proj.weight.normal_(std=0.5)
    text = (DATASTORES / "sqlite" / "pages" / "about.md").read_text()[:3000]
    for made, key, words in (
        (other, "head_input", "its keys differ by"),
        (model, "layer_output", "at ffn_input and head_input, not at layer_output"),
    ):
        store = build_datastore(made, tokenizer, [text], tmp_path / key, key=key, calibrate=False)
        with pytest.raises(KNNLogitsError, match=words):
            llm.collective_rpc(start, args=(store,))


def start(worker, store):
    from knn_logits.integrations.vllm.stepping import Stepping

    Stepping(worker.model_runner, [store])


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_many_kinds_get_the_librarys_mixture(kind, instruct, tmp_path, monkeypatch):
    from transformers import AutoConfig, AutoModelForCausalLM
    from vllm.distributed import cleanup_dist_env_and_memory

    _, tokenizer = instruct
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), **(sizes if kind != "gpt2" else {}) | KINDS[kind]
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "model")
    store = build_datastore(
        model, tokenizer, TEXTS, tmp_path / "s", k=8, lmbda=0.3, calibrate=False
    )
    monkeypatch.setenv("KNN_LOGITS_DATASTORE", str(store.folder))
    llm = vllm.LLM(str(tmp_path / "model"), dtype="float32", max_model_len=256, enforce_eager=True)
    memory = Memory(model, store)
    for output in write(llm, PROMPTS, [{}, {}]):
        (text,) = output.outputs
        torch.testing.assert_close(
            logs_of(text), expected(memory, output, text), atol=1e-3, rtol=0.0
        )
    del llm
    cleanup_dist_env_and_memory()
