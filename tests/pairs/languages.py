"""Makes small tokenizers with language tokens like those of multilingual models, and models."""

import string

import torch
from conftest import PAIRS, make_marian

CHARACTERS = string.ascii_letters + string.digits + ".,!?'äöüÄÖÜß▁"


def _pieces():
    words = {word for pair in PAIRS for text in pair for word in text.split()}
    return [*CHARACTERS, *sorted("▁" + word for word in words)]


def mbart():
    """Makes an mBART-25 tokenizer.

    A text ends with `</s> language`, and the decoder starts with the language.
    """
    from transformers import MBartTokenizer
    from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

    vocabulary = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary += [(piece, -float(len(CHARACTERS) > n) - 1) for n, piece in enumerate(_pieces())]
    vocabulary += [(code, 0.0) for code in FAIRSEQ_LANGUAGE_CODES] + [("<mask>", 0.0)]
    return MBartTokenizer(vocab=vocabulary)


def nllb():
    """Makes an NLLB tokenizer: a text is `language ... </s>`, the decoder starts with `</s>`."""
    from transformers import NllbTokenizer

    tokens = ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS]
    return NllbTokenizer(vocab={token: number for number, token in enumerate(tokens)})


# Each family's function, its names of English and German, and a name that it does not know.
FAMILIES = {
    "mbart": (mbart, "en_XX", "de_DE", "deu_Latn"),
    "nllb": (nllb, "eng_Latn", "deu_Latn", "de_DE"),
}


def model_of(tokenizer, **settings):
    """Makes a model for a tokenizer. Its output depends on the language."""
    own = {"vocabulary": len(tokenizer), "eos_token_id": 2, "decoder_start_token_id": 2}
    model = make_marian(**{**own, "bos_token_id": 0, **settings})
    with torch.no_grad():
        model.final_logits_bias.zero_()
    return model
