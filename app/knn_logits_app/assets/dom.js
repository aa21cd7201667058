// Makes elements and formats numbers. Text always becomes text nodes, and never HTML.

// Removes control characters, but keeps white space and the joiners that many scripts need.
const clean = (value) => String(value).replace(/[^\P{C}\n\t\u200c\u200d]/gu, "");

// Makes an element, such as `h("p", { class: "a", onclick: run }, "text", child)`.
const h = (name, attributes, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : clean(value));
  }
  made.append(...children.flat(3).filter((one) => one !== null && one !== undefined && one !== "")
    .map((one) => (one instanceof Node ? one : clean(one))));
  return made;
};
const button = (label, onclick, attributes = {}) =>
  h("button", { type: "button", onclick, ...attributes }, label);

// The least share of a word that has a colour.
const LEAST = 0.05;

const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : `${Math.round(share * 100)}%`);
const count = (number, of) => `${number.toLocaleString("en")} ${of}${number === 1 ? "" : "s"}`;
const short = (value) => String(Number(value.toPrecision(3)));
// The filled part of a bar.
const filled = (share) => {
  const made = h("i");
  made.style.width = `${(Math.max(0, Math.min(1, share)) * 100).toFixed(1)}%`;
  return made;
};
const sum = (numbers) => numbers.reduce((one, two) => one + two, 0);

// Makes a token visible. White space is shown by signs.
const visible = (token) => {
  const bare = token.replace(/^ +| +$/g, "");
  return bare ? bare.replaceAll("\n", "⏎").replaceAll("\t", "⇥") : "␣".repeat(Math.max(1, token.length));
};

// Begins and ends what is marked in a text. `clean` removes it from every text from outside.
const TURN = "\ue000";

// Shows the signs of Markdown as what they mean. It makes elements of its own, and never HTML. The text
// may come in parts, [text, whether it is marked]: a mark may begin within a table or within bold words.
const MARKDOWN = /^(?:[^\n]*\|[ \ue000]*\n(?=[ \ue000]*\|))+[^\n]*$\n?|^[ \ue000]*\|[^\n]+\|[ \ue000]*$\n?|(?<=^\ue000?)#{1,6} +(.+)$|^(.+)\n[=~^-]{3,}$|(?<!\w)\*\*(\S|\S[^\n]*?\S)\*\*(?!\w)|`([^`\n]+)`|(?<![\w*])\*(\S|[^\s*][^*\n]*[^\s*])\*(?![\w*])|(?<=^ *\ue000?)([*+-]) (?=\S)|!?\[([^\]\n]*)\]\([^)\n]*\)/gm;
const RULE = /^[ …|:\ue000-]+$/;
const rendered = (given) => {
  let turns = 0;
  const plain = (text) => text.split(TURN).map((part, place) => {
    if (place) turns += 1;
    return part && turns % 2 ? h("mark", { "data-mark": (turns - 1) / 2 }, part) : part;
  });
  const rowOf = (row, place, rows) => {
    if (RULE.test(row)) return plain(row) && null;
    const cells = row.replace(/^([ \ue000]*)\|/, "$1").replace(/\|([ \ue000]*)$/, "$1").split(/(?<!\\)\|/);
    const name = RULE.test(rows[place + 1] ?? row) ? "th" : "td";
    return h("tr", {}, cells.map((cell) => h(name, {}, drawn(cell.trim()))));
  };
  const drawn = (text) => {
    const parts = [];
    let end = 0;
    for (const found of text.matchAll(MARKDOWN)) {
      const [whole, heading, title, strong, code, slanted, item, label] = found, bold = heading ?? title ?? strong;
      parts.push(plain(text.slice(end, found.index)));
      const after = turns + whole.split(TURN).length - 1;
      parts.push(bold ? h("b", {}, drawn(bold)) : code ? h("code", {}, plain(code)) : slanted ? h("i", {}, drawn(slanted))
        : item ? "• " : label === undefined ? h("table", { class: "kl-table" }, whole.trim().split("\n").map(rowOf)) : plain(label));
      turns = after; // some may be in what is not shown, such as an address
      end = found.index + whole.length;
    }
    return [...parts, plain(text.slice(end))].flat();
  };
  const marked = (text) => text.replace(/^(\s*)(.*?)(\s*)$/s, `$1${TURN}$2${TURN}$3`);
  const parts = Array.isArray(given) ? given : [[given]];
  return drawn(parts.map(([text, is]) => (is ? marked(clean(text)) : clean(text))).join(""));
};

// The address of a document's original; null if it is not known.
const addressOf = (uri) => (/^https?:\/\//i.test(uri) && URL.canParse(uri) ? uri : null);

// Returns a link to a document's original, or null if its address is not known.
const link = (uri, label = "open") => {
  const address = addressOf(uri);
  if (!address) return null;
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, label,
    h("span", { class: "kl-sr" }, label === "open" ? " the document in a new tab" : " in a new tab"));
};

// Keeps a text in the browser's tab, for a page that is loaded again.
const keepAs = (name, text) => {
  try {
    sessionStorage.setItem(name, text);
  } catch {
    sessionStorage.removeItem(name); // there is no room for it
  }
};
