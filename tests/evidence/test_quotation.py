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
from knn_logits.engine.pieces import InnerText
from knn_logits.evidence.quotation import Quotations
from knn_logits.search.neighbors import Neighbors

EVERY = {"k": 400, "lmbda": 0.3, "temperature": 1000.0}


@pytest.fixture(scope="module")
def objections(explain, store):
    """What passages say in place of words of a text: [(word, the passage's words, document)]."""

    def found(text, stores=store, **settings):
        trace = explain(stores, text, **{**EVERY, **settings})
        return [
            (one.words.strip(), one.by_memory.token.strip(), one.by_memory.document.document)
            for one in trace[0].contradictions
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((text, []) for text in TEXTS),
        # Another text.
        ("The harbour master sleeps until noon, and nobody lifts a crate before he has had "
         "coffee.", []),
        ("Queen Maira never saw the sea. She built a library with eleven rooms in a quiet "
         "valley.", []),
        # A few words in a row with a passage: the rest of the sentence is worded otherwise.
        ("Someone from the office told us to open the winch cover with a cable drum nearby.", []),
        ("We know from him that now and then the keeper reads the book, and each evening I go.",
         []),
        # A difference as long as this is another sentence that ends alike.
        ("Whoever sees an error may now wake me and clear the cable drum by hand.", []),
        # After the word that differs only a sign is the same.
        ("Each morning the keeper reads the letter, then sleeps.", []),
        # A sentence of the passage, with words around it.
        (f"They say: {TEXTS[4].replace('book', 'diary')}", [("diary", "book", "4")]),
        (f"He can. {TEXTS[1].replace('drum', 'case')} So can we.", [("case", "drum", "1")]),
        # Words that were left out or put in.
        (TEXTS[7].replace("each evening he lights", "each evening lights"),
         [("lights", "he lights", "7")]),
        (TEXTS[1].replace("clear the cable", "never clear the cable"),
         [("never clear", "clear", "1")]),
    ],
)  # fmt: skip
def test_only_what_a_text_quotes_otherwise_is_a_difference(objections, text, found):
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
    words = [word for own, _, _ in said for word in own.split()]
    assert "".join(word for word in words if word[:1].isupper() or word.isdigit()) == found


SHOW = "He may show(winch.first, winch.second, winch.third and the weather of the lamp)."
PLATE = "On 14 March {} the assistant Quill found a comet with the small telescope."
GAP = "\n \n \n \n \n \n \n"
LID = "Do not open the lid above 90 degrees.\n\nDogs travel in kennels on deck three.\n\n"
GATE = "Cars must be at the gate 75 minutes before we sail. Others stand there 40 minutes before."
GATES, OILS = [LID + GATE, *TEXTS], [TEXTS[5]]
LAMPS = "lights more than seven lamps in the harbour each evening."
ALL_LAMPS = LAMPS.replace("seven", "all seven")
FEE = "The yearly fee is {} florins for adults and {} florins for members under eighteen."
PART = "The foam filter has the part number VF-118. The ceramic seal has the part number VS-240."
HOURS = "Our house opens at {} and closes at {}. On Sundays it opens at {} and closes at {}."
WEIGHTS = "| Weight of the pump | 7.4 kg | 9.1 kg |\n| Length of the cable | 1.5 m | 10 m |\n"
FREE = "The code is in the public domain and is thus free for use for any purpose at all."
HOUSE = "stands in the old house of the keeper on the north shore of the island, near the pier."
RIVALS = "The library does not compete with servers. It competes with {}."


@pytest.mark.parametrize(
    ("documents", "text", "found"),
    [
        # Other words at the beginning of a sentence.
        (GATES, "Open the lid above 90 degrees.", "Open: Do not open"),
        (GATES, "It is hot. Open the lid above 90 degrees", "Open: Do not open"),
        (GATES, "Never open the lid above 90 degrees.", "Never: Do not"),
        (GATES, "It is hot. Cats travel in kennels on deck three.", "Cats: Dogs"),
        (GATES, "Do not open the lid above 90 degrees.", ""),
        # So do other sentences begin, and other passages.
        (GATES, "We were told not to open the lid above 90 degrees.", ""),
        (GATES, "Yesterday, dogs travel in kennels on deck three.", ""),
        # A heading is no part of the sentence below it.
        ([f"The Keeper Of A Lamp\n\nNobody {LAMPS}"], f"The keeper of a lamp {LAMPS}", ""),
        ([f"Lamps\nNobody {LAMPS}"], f"Nobody {LAMPS}", ""),
        # A pronoun stands for a name.
        ([f"It {HOUSE}"], f"The Lamp Museum {HOUSE}", ""),
        ([f"The Lamp Museum {HOUSE}"], f"It {HOUSE}", ""),
        # What differs is elsewhere, too: in another sentence, another document or the same one.
        (GATES, "Others stand there 75 minutes before.", "75: 40"),
        ([f"He {LAMPS}", "He lights more than all."], f"He {ALL_LAMPS}",
         "all seven: seven"),
        ([PART], PART.replace("VS-240", "VF-118"), "VF-118: VS-240"),
        ([PART], "The foam filter has the part number VS-240.", "VS-240: VF-118"),
        ([HOURS.format("10:00", "17:30", "13:00", "18:00")],
         "On Sundays it opens at 10:00 and closes at 17:30.", "10:00: 13:00, 17:30: 18:00"),
        ([FEE.format(120, 45)], FEE.format(45, 120), "45: 120, 120: 45"),
        ([WEIGHTS], WEIGHTS.replace("7.4", "9.1", 1).replace("9.1 kg |\n", "7.4 kg |\n"),
         "9.1: 7.4, 7.4: 9.1"),
        ([FREE], FREE.replace("is in", "is not in").replace("thus", "thus not"),
         "not in: in, not free: free"),
        # A short sentence behind one that the passage has, too.
        ([RIVALS.format("files")], RIVALS.format("banks"), "banks: files"),
        # An earlier sentence of the passage begins alike.
        ([f"The keeper is old. The keeper {LAMPS}"], f"The keeper never {LAMPS}",
         "never lights: lights"),
        # A date opens a later sentence.
        ([f"A plate hangs there. {PLATE.format(1973)}", "Nobody came on 9 May."],
         f"Turn the key and wait for the bell. {PLATE.format(1978)}", "1978: 1973"),
        # A first word is cut without the space that a passage has before it.
        ([SHOW], SHOW[SHOW.index("winch.second") :], ""),
        # White space that a passage has, too, is no sentence.
        ([f"The lamp burns.{GAP}It is old.", *TEXTS], f"My cat sleeps!{GAP}She purrs.", ""),
        # Sentences that were put in or left out are no difference.
        (OILS, "The pump needs oil. It hums. The crane needs oil of grade nine, never grade seven.",
         ""),
        (OILS, "The pump needs oil of grade seven. Maira drinks tea. The crane needs oil of grade "
         "nine.", ""),
        (OILS, "The pump needs oil of grade nine, never grade seven.", "pump: crane"),
        (TEXTS, "Clear the cable drum. Error code E42 means a blocked winch, and the crane lifts "
         "crates.", ""),
    ],
)  # fmt: skip
def test_each_sentence_is_compared_with_one(build, objections, tmp_path, documents, text, found):
    said = objections(text, build(documents, tmp_path / "s", **EVERY))
    assert ", ".join(f"{own}: {theirs}" for own, theirs, _ in said) == found


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
        return [(one.words.strip(), one.by_memory.token.strip()) for one in trace.contradictions]

    assert against(text) == []
    assert against(text.replace("weather", "waves")) == [("waves", "weather")]


def test_a_short_sentence_is_compared(model, by_line):
    """No six of its words in a row are those of the passage."""
    own, store = by_line
    trace = explain(model, own, store, "The harbour café never opens at seven.", **EVERY)[0]
    against = [(one.token, one.by_memory.token) for one in trace.tokens if one.by_memory]
    assert against == [(" never", " opens"), (" opens", " opens")]


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


def test_a_passage_goes_on_where_the_search_misses_it(store, tokenizer):
    ids = np.asarray(store.tokens[: store.documents[0].length])
    other = int(store.contexts.entries_of(store.documents.first[3:4], np.ones(1, np.int64) * 9)[4])
    quotations = Quotations([store], InnerText(tokenizer, ids.tolist()))
    for place in range(10, len(ids)):
        # The search finds the passage once only.
        entry = place - 1 if place == 12 else other
        neighbors = Neighbors(
            torch.tensor([[entry]]), torch.zeros(1, 1), store.values[[entry]][None].long()
        )
        quotations.look(ids, place, neighbors, torch.zeros(1, 1))
    rest = set(range(len(ids))) - quotations.compare(ids)[1]
    assert not tokenizer.decode([ids[place] for place in rest]).strip()


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


def test_the_first_words_of_a_quotation_are_verbatim(explain, press):
    text = "The valve opens with a hiss, and whoever hears it waits until noon."
    tokens = explain(press, text, k=64, lmbda=0.3, temperature=1000.0)[0].tokens
    assert all(token.verbatim for token in tokens[:12])
    assert not any(token.verbatim for token in tokens[-2:])
