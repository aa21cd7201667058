"""Words that a passage does not have, in a text that quotes it otherwise."""

import unicodedata

import numpy as np
import pytest
import torch
from conftest import TEXTS
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import knn_logits
from knn_logits import Trace, explain
from knn_logits.evidence.quotation import Quotations
from knn_logits.evidence.sources import contradiction, words_of
from knn_logits.search.neighbors import Neighbors

EVERY = {"k": 400, "lmbda": 0.3, "temperature": 1000.0}


@pytest.fixture(scope="module")
def objections(explain, store):
    """What passages say in place of words of a text: [(word, the passage's words, document)]."""

    def found(text, stores=store, **settings):
        trace = explain(stores, text, **{**EVERY, **settings})
        said = [(word, contradiction(word)) for word in words_of(trace[0].tokens)]
        return [
            (
                "".join(one.token for one in word).strip(),
                rival.token.strip(),
                rival.document.document,
            )
            for word, rival in said
            if rival is not None
        ]

    return found


@pytest.mark.parametrize(
    ("document", "own", "other"),
    [
        (0, "twelve", "eleven"),
        (1, "winch", "motor"),
        (2, "town", "harbour"),
        (4, "weather", "waves"),
        (5, "seven", "eight"),
        (6, "1871", "1902"),
        (7, "barometer", "letter"),
        (7, "again", "twice"),
    ],
)
def test_a_word_that_was_replaced_is_found(objections, document, own, other):
    text = TEXTS[document].replace(own, other, 1)
    assert (other, own, str(document)) in objections(text)
    assert len(objections(text)) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_the_datastore_is_not_contradicted(objections, text):
    assert objections(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "The harbour master sleeps until noon, and nobody lifts a crate before he has had coffee.",
        "Queen Maira never saw the sea. She built a library with eleven rooms in a quiet valley.",
    ],
)
def test_another_text_is_not_contradicted(objections, text):
    assert objections(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # A few words in a row with a passage: the rest of the sentence is worded otherwise.
        ("Someone from the office told us to open the winch cover with a cable drum nearby.", []),
        (
            "We know from him that now and then the keeper reads the book, and each evening I go.",
            [],
        ),
        # A difference as long as this is another sentence that ends alike.
        ("Whoever sees an error may now wake me and clear the cable drum by hand.", []),
        # After the word that differs only a sign is the same.
        ("Each morning the keeper reads the letter, then sleeps.", []),
        # A sentence of the passage, with words around it.
        (f"They say: {TEXTS[4].replace('book', 'diary')}", [("diary", "book", "4")]),
        (f"He can. {TEXTS[1].replace('drum', 'case')} So can we.", [("case", "drum", "1")]),
    ],
)
def test_a_paraphrase_is_no_quotation(objections, text, found):
    assert objections(text) == found


FERRY = "The Korrin ferry was built on 1902-05-09. The default depth of this lamp is 100."
FORM = "Title: The Bishop\nAuthor: Maira\nStatus: Final\nCreated: 1874\nType: Harbour\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The chronicle says Queen Maira had founded the town of Newhaven in 1312.", "Newhaven"),
        ("Other books say the first crane was soon delivered in 1884.", "1884"),
        ("The Korrin ferry was built in 1903.", "1903"),
        # Half of a date is no other date.
        ("The Korrin ferry was built in 1902.", ""),
        ("The first crane was delivered in 1874, and Oldenport's harbour dredged in 1871.", ""),
        ("Here the chronicle says that in the year 1312 Queen Maira founded Oldenport.", ""),
        # Sentences about many things begin or end so.
        ("The default depth of the harbour under this long crane is 7.", ""),
        ("It was built on 1903-05-09.", ""),
        # Names and numbers are all that differs between forms.
        (FORM.replace("1874", "1903").replace("Bishop", "Keeper"), ""),
    ],
)
def test_another_number_or_name_is_found_in_a_paraphrase(build, objections, tmp_path, text, found):
    said = objections(text, build([*TEXTS, FERRY, FORM], tmp_path / "s", **EVERY))
    assert "".join(own for own, _, _ in said if own[:1].isupper() or own.isdigit()) == found


def test_words_that_were_left_out_or_put_in_are_found(objections):
    left_out = TEXTS[7].replace("each evening he lights", "each evening lights")
    assert objections(left_out) == [("lights", "he lights", "7")]
    put_in = TEXTS[1].replace("clear the cable", "never clear the cable")
    assert objections(put_in) == [(one, "clear", "1") for one in ("never", "clear")]


LID = "Do not open the lid above 90 degrees.\n\nDogs travel in kennels on deck three.\n\n"
GATE = "Cars must be at the gate 75 minutes before we sail. Others stand there 40 minutes before."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Open the lid above 90 degrees.", "pen: Do not open"),
        ("It is hot. Open the lid above 90 degrees", "Open: Do not open"),
        ("Never open the lid above 90 degrees.", "ever: Do not open, open: Do not open"),
        (
            "It is hot. Cats travel in kennels on deck three.",
            "Cats: Dogs travel, travel: Dogs travel",
        ),
        ("Do not open the lid above 90 degrees.", ""),
        # So do other sentences begin, and other passages.
        ("We were told not to open the lid above 90 degrees.", ""),
        ("Yesterday, dogs travel in kennels on deck three.", ""),
        # The passage has this number in another sentence, after another word.
        ("Others stand there 75 minutes before.", "75: 40"),
    ],
)
def test_other_words_at_the_beginning_of_a_sentence_are_found(
    build, objections, tmp_path, text, found
):
    said = objections(text, build([LID + GATE, *TEXTS], tmp_path / "s", **EVERY))
    assert ", ".join(f"{own}: {theirs}" for own, theirs, _ in said) == found


def test_white_space_that_a_passage_has_too_is_no_sentence(build, objections, tmp_path):
    gap = "\n \n \n \n \n \n \n"
    store = build([f"The lamp burns.{gap}It is old.", *TEXTS], tmp_path / "s", **EVERY)
    assert objections(f"My cat sleeps!{gap}She purrs.", store) == []


LAMPS = "lights more than seven lamps in the harbour each evening."
ALL_LAMPS = LAMPS.replace("seven", "all seven")


@pytest.mark.parametrize(
    ("documents", "text", "found"),
    [
        # A heading is no part of the sentence below it.
        ([f"The Keeper Of A Lamp\n\nNobody {LAMPS}"], f"The keeper of a lamp {LAMPS}", ""),
        # Another passage has the word that was put in. The next one once differed from itself.
        ([f"He {LAMPS}", "He lights more than all."], f"He {ALL_LAMPS}", ""),
        # An earlier sentence of the passage begins alike.
        ([f"The keeper is old. The keeper {LAMPS}"], f"The keeper never {LAMPS}", "never lights"),
    ],
)
def test_words_are_compared_in_one_sentence(build, objections, tmp_path, documents, text, found):
    said = objections(text, build(documents, tmp_path / "s", **EVERY))
    assert " ".join(own for own, _, _ in said) == found


def test_a_word_needs_a_sentence_about_the_same_thing(build, explain, tmp_path):
    other = "The depth of a deep shaft is limited to 1000 steps by default."
    store = build([*TEXTS, other], tmp_path / "s", k=16, lmbda=0.9, temperature=1.0)

    def agreeing(text):
        tokens = explain(store, text, k=16, lmbda=0.9, temperature=1.0)[0].tokens
        return "".join(one.token for one in tokens if one.meaning != "own")

    assert "1000" in agreeing(other)
    assert "1000" in agreeing(other.replace("The depth of a deep", "The long way of this"))
    wrong = agreeing("The number of attached databases is limited to 1000 by default.")
    assert not any(map(str.isdigit, wrong))
    # Such as "in", which many passages have in other sentences.
    assert agreeing("A tax is due in the first week of each month, says the law.").strip() == ""
    quoting = f"On the last page a visitor wrote in green ink that {other}"
    tokens = explain(store, quoting, k=16, lmbda=0.9, temperature=1.0)[0].tokens
    verbatim = [one for one in tokens if one.verbatim]
    assert len(verbatim) > 20
    assert all(one.token.strip().isdigit() for one in verbatim if one.elsewhere)


@pytest.mark.parametrize(
    "text",
    [
        "The pump needs oil. It hums. The crane needs oil of grade nine, never grade seven.",
        "The pump needs oil of grade nine, never grade seven.",
        "The pump needs oil of grade seven. Maira drinks tea. The crane needs oil of grade nine.",
        "Clear the cable drum. Error code E42 means a blocked winch, and the crane lifts crates.",
    ],
)
def test_sentences_that_were_put_in_or_left_out_are_no_difference(objections, text):
    assert objections(text) == []


SUPPORT = (
    "The keeper repairs the lamp with a hammer. The harbour promises to support the winch through "
    "the year 2050. After that nobody writes a book about the crane."
)
OWN = "The harbour promises to support the winch through the year"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # The first sentence stands where the passage has another one, and shares words with it.
        (f"The winch is red. {SUPPORT.partition('. ')[2]}", []),
        (f"The winch is red. {OWN} 2050.", []),
        (f"The winch is red. {OWN} 2060.", [("2060", "2050")]),
        # After its last word only the sign of a sentence is the same, wherever the sentence stands.
        (f"{OWN} 2060. The winch is red.", [("2060", "2050")]),
        (f"{TEXTS[4]} {OWN} 2060. The winch is red.", [("2060", "2050")]),
        # Another sentence of the text is the passage's.
        (f"{OWN} 2050. Nobody knew it. {OWN} 2060.", [("2060", "2050")]),
        (f"{TEXTS[4].replace('weather', 'waves')} {OWN} 2060. {TEXTS[7]}",
         [("waves", "weather"), ("2060", "2050")]),
    ],
)  # fmt: skip
def test_each_sentence_of_a_text_is_compared_by_itself(build, objections, tmp_path, text, found):
    store = build([*TEXTS, SUPPORT], tmp_path / "s", **EVERY)
    assert [one[:2] for one in objections(text, store)] == found


def test_what_another_document_says_word_for_word_is_not_contradicted(build, objections, tmp_path):
    both = [TEXTS[5], TEXTS[5].replace("nine", "four")]
    store = build(both, tmp_path / "both", **EVERY)
    assert objections(both[0], store) == objections(both[1], store) == []
    assert objections(TEXTS[5].replace("nine", "five"), store)
    # The other document has another word near one that no document has.
    near = [TEXTS[4], TEXTS[4].replace("weather", "harbour")]
    store = build(near, tmp_path / "near", **EVERY)
    said = objections(near[0].replace("writes", "reads"), store)
    assert [one[:2] for one in said] == [("reads", "writes")]


def test_one_word_differs_in_a_tokenizer_that_drops_the_first_space(model, tmp_path):
    """Llama's decodes "▁winch" as "winch" if it stands alone."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=["<unk>"], min_frequency=1)
    made.train_from_iterator(TEXTS * 5, trainer)
    own = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    store = knn_logits.build_datastore(
        model, own, TEXTS, tmp_path / "s", k=64, lmbda=0.5, temperature=1000.0, index="exact"
    )
    for word, other in (("cover", "drum"), ("winch", "pump")):
        trace = explain(model, own, store, TEXTS[1].replace(word, other, 1))[0]
        against = [one for one in trace.tokens if one.meaning == "contradicted"]
        assert {one.by_memory.token.strip() for one in against} == {word}
        assert "".join(one.token for one in against).strip() == other
        # The passage has the whole word, of several tokens, and it is where the entry says.
        rival = against[0].by_memory
        shown = rival.passage.before + rival.passage.word + rival.passage.after
        assert " ".join(shown.split()) in TEXTS[1]
        first = store.contexts.token_of(rival.entry)
        ids = store.tokens[first : first + rival.length].tolist()
        assert own.decode(ids).strip() == word
    assert not [one for one in explain(model, own, store, TEXTS[1])[0].tokens
                if one.meaning == "contradicted"]  # fmt: skip


CAFE = (
    "The harbour café opens at seven and closes at noon.\nThe keeper writes the weather into a "
    "book each evening before he lights the lamp."
)


@pytest.fixture(scope="module")
def by_line(model, tmp_path_factory):
    """A tokenizer that has a full stop and the line break behind it as one token, as Qwen's has."""
    made = Tokenizer(models.WordLevel({"<e>": 0}, "<e>"))
    cut = Regex(r"\.\n| ?\w+\u00a0| ?[\w\u0301]+|[^\w]")
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split(cut, "isolated"), decoders.Fuse()
    trainer = trainers.WordLevelTrainer(special_tokens=["<e>"], show_progress=False)
    texts = [CAFE, *VARIANTS.values(), " waves never"]
    made.train_from_iterator(texts, trainer)
    own = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<e>", unk_token="<e>")
    folder = tmp_path_factory.mktemp("line") / "s"
    return own, knn_logits.build_datastore(model, own, [CAFE], folder, **EVERY)


VARIANTS = {
    "line break": CAFE.replace(".\n", ". "),
    "no-break space": CAFE.replace(" a book", "\u00a0a book"),
    "accents": unicodedata.normalize("NFD", CAFE),
}


@pytest.mark.parametrize("text", VARIANTS.values(), ids=VARIANTS)
def test_the_same_words_in_other_characters_are_no_difference(model, by_line, text):
    own, store = by_line
    assert text != CAFE

    def against(text):
        trace = explain(model, own, store, text, **EVERY)[0]
        said = [(word, contradiction(word)) for word in words_of(trace.tokens)]
        return [("".join(t.token for t in one).strip(), r.token.strip()) for one, r in said if r]

    assert against(text) == []
    assert against(text.replace("weather", "waves")) == [("waves", "weather")]


def test_a_short_sentence_is_compared(model, by_line):
    """No six of its words in a row are those of the passage."""
    own, store = by_line
    trace = explain(model, own, store, "The harbour café never opens at seven.", **EVERY)[0]
    against = [(one.token, one.by_memory.token) for one in trace.tokens if one.by_memory]
    assert against == [(" never", " opens"), (" opens", " opens")]


def test_a_first_word_is_cut_without_the_space_that_a_passage_has_before_it(
    build, objections, tmp_path
):
    text = "He may show(winch.first, winch.second, winch.third and the weather of the lamp)."
    store = build([text], tmp_path / "s", **EVERY)
    assert objections(text[text.index("winch.second") :], store) == []


def test_a_vote_does_not_contradict_what_a_passage_says_word_for_word(build, explain, tmp_path):
    """Five documents have another number in the same sentence, and one has that of the text."""
    sharp = {"k": 16, "lmbda": 0.9, "temperature": 1.0}
    texts = [TEXTS[5].replace("nine", "four")] * 5 + [TEXTS[5]]
    store = build(texts, tmp_path / "s", **sharp)

    def against(text, **settings):
        trace = explain(store, text, **{**sharp, **settings})
        trace.save(tmp_path / "t.json")
        assert Trace.load(tmp_path / "t.json") == trace
        return [one for one in trace[0].tokens if one.meaning == "contradicted"]

    assert against(TEXTS[5]) == []
    # The rule holds for what may vote.
    assert against(TEXTS[5], exclude=["5"])
    assert against(TEXTS[5].replace("nine", "five"))


def test_a_passage_goes_on_where_the_search_misses_it(store):
    ids = np.asarray(store.tokens[: store.documents[0].length])
    other = int(store.contexts.entries_of(store.documents.first[3:4], np.ones(1, np.int64) * 9)[4])
    quotations = Quotations([store])
    for place in range(10, len(ids)):
        # The search finds the passage once only.
        entry = place - 1 if place == 12 else other
        neighbors = Neighbors(
            torch.tensor([[entry]]), torch.zeros(1, 1), store.values[[entry]][None].long()
        )
        quotations.look(ids, place, neighbors, torch.zeros(1, 1))
    assert quotations.verbatim([]) >= set(range(12, len(ids)))


PRESS = (
    "A press stands in the yard. It takes 2.8 kilograms of fruit at once and gives much juice. "
    "The valve opens with a hiss, and whoever hears it waits until the needle stands below 3.8 bar "
    "at 19:15 beside the nut K-3733 or until 3,420 turns are done."
)


@pytest.fixture(scope="module")
def press(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("press") / "s"
    settings = {"k": 64, "lmbda": 0.3, "temperature": 1000.0}
    return build([PRESS], folder, **settings)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3.8", "4.8"),
        ("3.8", "3.9"),
        ("3.8", "38"),
        ("19:15", "18:15"),
        ("K-3733", "K-3737"),
        ("3,420", "3,520"),
    ],
)
def test_a_whole_number_is_named(objections, press, old, new):
    assert objections(PRESS.replace(old, new), press) == [(new, old, "0")]
    text = "It takes 4.8 kilograms of fruit at once and gives much juice."
    assert objections(text, press) == [("4.8", "2.8", "0")]


def test_a_date_that_opens_a_later_sentence_is_compared(objections, build, tmp_path):
    line = "On 14 March {} the assistant Quill found a comet with the small telescope."
    texts = [f"A plate hangs there. {line.format(1973)}", "Nobody came on 9 May."]
    settings = {"k": 64, "lmbda": 0.3, "temperature": 1000.0}
    store = build(texts, tmp_path / "s", **settings)
    text = f"Turn the key and wait for the bell. {line.format(1978)}"
    assert objections(text, store) == [("1978", "1973", "0")]
    assert objections(text.replace("1978", "1973"), store) == []


def test_the_first_words_of_a_quotation_are_verbatim(explain, press):
    text = "The valve opens with a hiss, and whoever hears it waits until noon."
    tokens = explain(press, text, k=64, lmbda=0.3, temperature=1000.0)[0].tokens
    assert all(token.verbatim for token in tokens[:12])
    assert not any(token.verbatim for token in tokens[-2:])
