"""Has a model write after a prompt, and tests whether it reads passages of invented facts."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from knn_logits.ask.answer import DECLINED
from knn_logits.ask.messages import chat_prompt
from knn_logits.engine.compatibility import model_record
from knn_logits.engine.forward import input_device
from knn_logits.engine.pairs import context_length
from knn_logits.store.files import cache_folder

# A passage, a question, and a word that a right answer has; None where the passage has no answer.
_TEST: tuple[tuple[str, str, str | None], ...] = (
    ("The Brelda ferry leaves Tornhaven at 6:40 and reaches Ulm Island at 8:05.",
     "Who is the captain of the Brelda ferry?", None),
    ("Mara Quill founded the Osten library in 1874 with money from her uncle's mill.",
     "When was the Osten library founded?", "1874"),
    ("The pump of the K-20 needs 35 grams of grease every two months.",
     "What does the K-20 cost?", None),
    ("In Velm, shops close at noon on Wednesdays, except for the bakery at the harbor.",
     "Which shop stays open on Wednesday afternoons in Velm?", "bakery"),
    ("The Harlow bridge was painted green in May and is inspected by Ida Renn.",
     "How long is the Harlow bridge?", None),
    ("Members of the Pell club pay 12 crowns, and guests pay 19 crowns.",
     "What do guests pay at the Pell club?", "19"),
    ("Professor Lund kept the red notebook in Turin and the blue one in Oslo.",
     "In which city was the blue notebook?", "oslo"),
    ("Dorn cheese ripens for nine weeks in a cellar of slate.",
     "Which wine goes with Dorn cheese?", None),
    ("The alarm of the Fenwick boiler sounds when its water falls below 4 liters.",
     "When does the boiler's alarm sound?", "4"),
    ("Otto Brams lost the final against Lise Karr, who had trained in Kirm.",
     "Who won the final?", "karr"),
    ("The museum moved from Ash Street to Linden Square after the flood.",
     "Where is the museum now?", "linden"),
    ("Each tent of the Norrin camp sleeps five, and there are eight tents.",
     "How many people does one tent of the Norrin camp sleep?", "five"),
)  # fmt: skip
LEAST_RIGHT = 10
_MAX_TOKENS = 24


def reads(model: Any, tokenizer: Any) -> bool:
    """Whether a model answers ten of twelve questions by what a passage says, or does not say.

    The result is kept by the model's fingerprint. A model without a chat template does not read.
    """
    if not getattr(tokenizer, "chat_template", None):
        return False
    kept, name = _kept(), _fingerprint(model)
    if name not in kept:
        kept[name] = _passes(model, tokenizer)
        with suppress(OSError):
            _place().parent.mkdir(parents=True, exist_ok=True)
            _place().write_text(json.dumps(kept), encoding="utf-8")
    return bool(kept[name])


def _passes(model: Any, tokenizer: Any) -> bool:
    wrong, room = 0, context_length(model)
    for passage, question, word in _TEST:
        prompt = chat_prompt(tokenizer, question, [passage])
        if room is not None and len(prompt) + _MAX_TOKENS > room:
            return False
        written = write(model, tokenizer, prompt, _MAX_TOKENS)
        text = tokenizer.decode(written, skip_special_tokens=True).lower()
        declined = DECLINED in text
        wrong += not declined if word is None else declined or word not in text
        if wrong > len(_TEST) - LEAST_RIGHT:
            return False
    return True


def write(
    model: Any, tokenizer: Any, prompt: list[int], max_new_tokens: int, **settings: Any
) -> list[int]:
    """The tokens that a model writes after a prompt; `settings` are those of `generate()`."""
    ids = torch.tensor([prompt], device=input_device(model))
    pad = tokenizer.pad_token_id
    how: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": max_new_tokens,
        "do_sample": False,
        "pad_token_id": tokenizer.eos_token_id if pad is None else pad,
        **settings,
    }
    written: list[int] = model.generate(input_ids=ids, **how)[0, len(prompt) :].tolist()
    return written


def _place() -> Path:
    return cache_folder() / "reading.json"


def _kept() -> dict[str, bool]:
    try:
        kept = json.loads(_place().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _fingerprint(model: Any) -> str:
    digest = hashlib.sha256(model_record(model).model_dump_json().encode())
    weights = getattr(model.get_output_embeddings(), "weight", None)
    if weights is not None and weights.device.type != "meta":
        digest.update(weights[:64].detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
