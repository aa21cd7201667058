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

    given = (model, ids, processors, 12)
    with ThreadPoolExecutor(1) as other:
        written = (
            other.submit(run, *given, **settings).result() if thread else run(*given, **settings)
        )
    text = tokenizer.decode(written, skip_special_tokens=True)
    assert extension.output_modifier(text, state) == text
    return written, len(processors)


def run(model, ids, processors, new_tokens=8, **settings):
    """Tokens that the host writes with these processors."""
    settings = {"max_new_tokens": new_tokens, "do_sample": False, **settings}
    with torch.no_grad():
        output = model.generate(inputs=ids, logits_processor=processors, **settings)
    return output[0, ids.shape[1] :].tolist()


def by_library(model, tokenizer, store, **settings):
    """Tokens that the library alone writes."""
    from knn_logits import KNNLogitsProcessor

    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with KNNLogitsProcessor(model, store, **settings) as knn:
        return run(model, ids, [knn], 12)
