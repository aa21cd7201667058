// Shows a card beside a word or a document, while the pointer rests on it or the keyboard has moved
// there: where it comes from. A click opens more of it, so that the card has nothing to press.

const RESTS = 200;
const theCard = { shown: null, of: null, timer: null };

const hideCard = () => {
  clearTimeout(theCard.timer);
  theCard.shown?.remove();
  Object.assign(theCard, { shown: null, of: null });
};
const showCard = (of, content) => {
  const card = h("div", { class: "kl-over", "aria-hidden": "true" }, content);
  // The pointer may move onto the card, to read or to copy it.
  card.addEventListener("pointerenter", () => clearTimeout(theCard.timer));
  card.addEventListener("pointerleave", hideCard);
  document.body.append(card);
  const [box, size] = [of.getBoundingClientRect(), card.getBoundingClientRect()];
  const below = box.bottom + 4 + size.height < innerHeight || box.top < size.height;
  card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - size.width - 8))}px`;
  card.style.top = `${below ? box.bottom + 4 : box.top - size.height - 4}px`;
  theCard.shown = card;
};

// Gives the elements of a place that `selector` finds cards with what `content` returns for each.
const cards = (place, selector, content) => {
  const rest = (event) => {
    const of = event.target.closest(selector);
    if (!of || of === theCard.of || event.pointerType === "touch") return;
    hideCard();
    theCard.of = of;
    theCard.timer = setTimeout(() => {
      const parts = of.isConnected && content(of);
      if (parts) showCard(of, parts);
    }, RESTS);
  };
  const leave = () => {
    clearTimeout(theCard.timer);
    theCard.timer = setTimeout(hideCard, RESTS);
  };
  place.addEventListener("pointerover", rest);
  place.addEventListener("pointerout", leave);
  place.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && rest(event));
  place.addEventListener("focusout", leave);
  place.addEventListener("click", hideCard);
};
addEventListener("scroll", hideCard, { passive: true, capture: true });
addEventListener("keydown", (event) => event.key === "Escape" && hideCard());

// The sentence of a passage that has some of its words, which are marked.
const sentenceOf = ({ before, word, after }, marked = word) => {
  const rest = (word + after).slice(marked.length);
  const bare = marked.trimStart();
  const end = rest.search(/(?<=[.!?])\s|\n\s*\n/);
  return h("blockquote", { dir: "auto" }, fromAWord(before.split(/(?<=[.!?])\s+|\n\s*\n/).at(-1)),
    marked.slice(0, marked.length - bare.length), h("mark", {}, bare), end < 0 ? toAWord(rest) : rest.slice(0, end));
};
const cardOf = (line, number, passage, marked, view) => {
  const document = documentOf(view.known.side.trace, number);
  return [h("p", {}, h("b", {}, passage?.title ?? document.name), h("span", { class: "kl-store" }, document.store)),
    passage && sentenceOf(passage, marked), h("p", { class: "kl-hint" }, line)];
};
const cardOfWord = (word, view) => {
  const { against } = word;
  if (against && against.document !== null) return cardOf(hint(word), against.document, against.passage, undefined, view);
  const [most] = documentsOf(word, view.known.states);
  if (!most || word.share < LEAST) return null;
  const found = passageFor(word, most.number, view.spanOf(word), view.known.side.trace);
  return cardOf(hint(word), most.number, found?.passage, found?.marked, view);
};
const cardOfDocument = (number, view) => {
  const { words, states, side } = view.known;
  const shares = words.filter((one) => one.text).map((word) =>
    ({ word, share: documentsOf(word, states).find((one) => one.number === number)?.share ?? 0 }));
  const mine = shares.filter((one) => one.share >= LEAST).sort((one, two) => two.share - one.share);
  const found = mine.map(({ word }) => passageFor(word, number, view.spanOf(word), side.trace)).find(Boolean);
  return cardOf(`${count(mine.length, "word")} of the text. Click to read the document.`, number, found?.passage, found?.marked, view);
};
