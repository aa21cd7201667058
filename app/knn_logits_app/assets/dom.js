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

const percent = (share) =>
  share > 0 && share < 0.005 ? "under 1%" : `${Math.round(share * 100)}%`;
const count = (number, of) => `${number.toLocaleString("en")} ${of}${number === 1 ? "" : "s"}`;
const short = (value) => String(Number(value.toPrecision(3)));
const three = (share) => (share > 1e-9 && share < 0.0005 ? "<.001" : share.toFixed(3));
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

// Shows the signs of Markdown as what they mean. It makes elements of its own, and never HTML.
const MARKDOWN = /^#{1,6} +(.+)$|^(.+)\n[=~^-]{3,}$|(?<!\w)\*\*(\S|\S[^\n]*?\S)\*\*(?!\w)|`([^`\n]+)`|(?<![\w*])\*(\S|[^\s*][^*\n]*[^\s*])\*(?![\w*])|^( *)[*+-] (?=\S)|!?\[([^\]\n]*)\]\([^)\n]*\)/gm;
const rendered = (text) => {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(MARKDOWN)) {
    const [whole, heading, title, strong, code, slanted, indent, label] = found, bold = heading ?? title ?? strong;
    parts.push(text.slice(end, found.index), bold ? h("b", {}, rendered(bold)) : code ? h("code", {}, code) : slanted ? h("i", {}, slanted)
      : indent === undefined ? label : `${indent}• `);
    end = found.index + whole.length;
  }
  return [...parts, text.slice(end)];
};

// The address of a document's original; null if it is not known.
const addressOf = (uri) => {
  try {
    return /^https?:\/\//i.test(uri) && new URL(uri) ? uri : null;
  } catch {
    return null;
  }
};

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
