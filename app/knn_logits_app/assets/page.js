// Handles the page around the answers: the settings on a phone, files, and limits.

// Whether the sources of a word are a sheet at the lower edge, and not a column (answer.css).
// An answer that was saved as a page has no such sheet.
const sheets = () => matchMedia("(max-width: 1100px)").matches && Boolean(document.querySelector(".gradio-container"));

// Sets the text of a field as if it were typed, or a box as if it were clicked.
const fill = (field, value) => {
  if (field.type === "checkbox") return field.checked === value || field.click();
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(field, value);
  return field.dispatchEvent(new Event("input", { bubbles: true }));
};

// Clicks once the page knows of what was changed last, which takes a moment.
const press = (selector) => requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector(selector)?.click()));
const able = (id, yes) => document.getElementById(id)?.toggleAttribute("disabled", !yes);
// The requests that the server has not ended, by the id of their button.
const pending = {};
const reading = (id, more) => {
  pending[id] = (pending[id] ?? 0) + more;
  able(`${id}-stop`, pending[id] > 0);
};
// Of a request that is stopped while it waits the server says nothing.
document.addEventListener("click", ({ target }) => able(target.closest?.(".kl-run > [id$=-stop]")?.id, false));

const settings = (open) => document.getElementById("open-settings")?.setAttribute("aria-expanded", String(open));
const areOpen = () => document.getElementById("open-settings")?.getAttribute("aria-expanded") === "true";
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#open-settings")) settings(!areOpen());
  else if (areOpen() && !event.target.closest?.("#side") && event.target.isConnected) settings(false);
});
document.addEventListener("keydown", (event) => event.key === "Escape" && settings(false));

// All panels are mounted from the start. gradio mounts those of its own tabs only when they are opened,
// and then sets their fields back to their first values, so that what was typed meanwhile is lost.
const openTab = (tab) => {
  document.querySelectorAll("[role=tab]").forEach((one) => {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
  });
  if (tab.id === "open-chat") theChat.opened();
};
document.addEventListener("click", ({ target }) => {
  const tab = target.closest?.("[role=tab]");
  if (tab) openTab(tab);
});
document.addEventListener("keydown", (event) => {
  const tabs = [...document.querySelectorAll("[role=tab]")], place = tabs.indexOf(event.target);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (place < 0 || !step) return;
  event.preventDefault();
  const next = tabs[(place + step + tabs.length) % tabs.length];
  openTab(next);
  next.focus();
});

// Says what is wrong with what a visitor gives, at once and below its box.
const complain = (box, line) => {
  const told = document.querySelector(`#${box.id}-wrong`) ?? h("p", { id: `${box.id}-wrong`, class: "kl-notice kl-error", role: "alert" });
  told.textContent = clean(line ?? "");
  if (line) box.after(told);
  else told.remove();
};
// A browser would cut a text that is too long, and say nothing.
document.addEventListener("beforeinput", (event) => {
  const { target, data, dataTransfer } = event;
  if (!target.matches?.("textarea[maxlength]") || !event.inputType.startsWith("insert")) return;
  const added = data ?? dataTransfer?.getData("text/plain") ?? "";
  const length = target.value.length - (target.selectionEnd - target.selectionStart) + added.length;
  const long = length > target.maxLength;
  complain(target.closest("#chat-line") ?? target.closest("[id]:not(textarea)"), long && `This was not added: `
    + `the text would have ${length.toLocaleString("en")} characters, and the limit is ${target.maxLength.toLocaleString("en")}.`);
  if (long) event.preventDefault();
}, true);

// The browser's field behind the button "Attach". Files that are dropped are put into it.
const ATTACH = "[data-testid=Attach-upload-button]";
document.addEventListener("change", (event) => {
  if (!event.target.matches?.(ATTACH) || !event.target.files.length) return;
  const files = [...event.target.files];
  // gradio, too, sends these only.
  const kept = files.filter(({ name }) => server.suffixes.some((one) => name.toLowerCase().endsWith(one)));
  const strange = files.filter((one) => !kept.includes(one)).map((one) => one.name);
  const left = strange.length ? [`${strange.join(", ")} (no text and no document: ${server.suffixes.join(", ")})`] : [];
  const bytes = sum(kept.map((file) => file.size));
  const line = !kept.length ? `Could not read ${left}.` : bytes > server.bytes
    ? `The files have ${short(bytes / 1e6)} MB, but the limit is ${short(server.bytes / 1e6)} MB together.` : null;
  complain(document.getElementById("chat-line"), line);
  if (!line) {
    theChat.attaching(left);
    return;
  }
  event.stopImmediatePropagation();
  event.target.value = "";
}, true);
for (const kind of ["dragover", "drop"])
  document.addEventListener(kind, (event) => {
    if (!event.target.closest?.("#tab-chat") || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    if (kind !== "drop") return;
    const field = document.querySelector(ATTACH);
    field.files = event.dataTransfer.files;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  });

// Back closes a panel or a sheet, and does not leave the page: an entry of the browser's history stands for it.
const SHEETS = ".kl-panels .kl-close, #open-settings[aria-expanded=true], dialog[open] .kl-close";
const openSheets = () => [...document.querySelectorAll(SHEETS)].filter((one) => one.checkVisibility({ visibilityProperty: true }));
let entered = false;
for (const kind of ["click", "keyup"]) document.addEventListener(kind, () => setTimeout(() => {
  const open = openSheets().length > 0;
  if (open && !entered) history.pushState(null, "");
  if (!open && entered) history.back();
  entered = open;
}));
addEventListener("popstate", () => {
  if (!entered) return;
  entered = false;
  openSheets().at(-1)?.click();
});
