"""Asks the extension for answers as text-generation-webui does, and the library alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import LogitsProcessorList

SCRIPT = Path(__file__).parents[2] / "app" / "text_generation_webui" / "script.py"
PROMPT = "When error code E42 appears, open"


def answer(extension, host, *, thread=True, prompt=PROMPT, **settings):
    """One answer as the host writes it: the processors first, `generate()` in another thread."""
    model, tokenizer = host.shared.model, host.shared.tokenizer
    state = extension.state_modifier({"stream": thread})
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    processors = LogitsProcessorList()
    extension.logits_processor_modifier(processors, ids)

    def run():
        settings_of = {"max_new_tokens": 12, "do_sample": False, **settings}
        with torch.no_grad():
            return model.generate(inputs=ids, logits_processor=processors, **settings_of)

    with ThreadPoolExecutor(1) as other:
        output = other.submit(run).result() if thread else run()
    written = output[0, ids.shape[1] :]
    text = tokenizer.decode(written, skip_special_tokens=True)
    assert extension.output_modifier(text, state) == text
    return written.tolist(), len(processors)


def by_library(model, tokenizer, store, writing=None, **settings):
    """Tokens that the library alone writes; `writing` is for `generate()`."""
    from knn_logits import KNNLogitsProcessor

    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(model, store, **settings) as knn:
        output = model.generate(
            ids, max_new_tokens=12, do_sample=False, logits_processor=[knn], **writing or {}
        )
    return output[0, ids.shape[1] :].tolist()
