"""A tokenizer that has tokens for letters, and for each byte of any other character."""

from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

RARE = "the weather in 東京の天気は晴れ today, and हिन्दी में पाठ, 🌞👍🏽🌞 end."


def make_byte_fallback():
    """Makes a tokenizer like Llama's: letters have tokens, and each byte of any other character."""
    letters = [*"▁abcdefghijklmnopqrstuvwxyz.,", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", *letters])}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
