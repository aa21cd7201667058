// Handles the page around the answers: the Enter key, the settings on a phone, and prompts to try.

const narrow = () => matchMedia("(max-width: 760px)").matches;

// Sets the text of a field as if it were typed.
const fill = (selector, text) => {
  const field = document.querySelector(selector);
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(field, text);
  field.dispatchEvent(new Event("input", { bubbles: true }));
};

// Runs something once the page knows of what was changed last, which takes a moment.
const later = (run) => requestAnimationFrame(() => requestAnimationFrame(run));
const press = (selector) => later(() => document.querySelector(selector)?.click());
// Writes a text on.
const write = (text) => {
  document.getElementById("open-generate").click();
  fill("#prompt textarea", text);
  press("#write");
};

// Chooses a datastore, if it is not chosen yet.
const tick = (name) => [...document.querySelectorAll("#stores label")].find((one) => one.textContent.trim() === name)
  ?.querySelector("input:not(:checked)")?.click();

// Makes Enter write or send, and Shift+Enter break the line. In gradio it is the other way round.
const SENDS = { "#prompt textarea": "#write", "#chat-question textarea": "#chat-send" };
const enter = (event) => {
  const box = event.key === "Enter" && !event.isComposing && Object.keys(SENDS).find((one) => event.target.matches?.(one));
  if (!box) return;
  event.stopPropagation();
  if (event.shiftKey) return;
  event.preventDefault();
  if (event.type === "keydown") document.querySelector(SENDS[box]).click();
};
document.addEventListener("keydown", enter, true);
document.addEventListener("keypress", enter, true);

// Shows that an answer is awaited or written, until its last frame. A request that the server refuses
// has no frame, so the state ends by itself. It may be waiting still, and can be stopped.
const AWAITED = 8000;
let awaited = null;
const able = (id, yes) => document.getElementById(id)?.toggleAttribute("disabled", !yes);
const writing = (yes, stoppable = yes) => {
  clearTimeout(awaited);
  able("stop", stoppable);
  document.documentElement.classList.toggle("kl-writing", yes);
  document.getElementById("answers")?.setAttribute("aria-busy", String(yes));
  if (yes) awaited = setTimeout(() => writing(false, true), AWAITED);
};
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#write, #tab-generate .kl-chips button")) writing(true);
  // Of a request that is stopped while it waits the server says nothing.
  if (event.target.closest?.("#stop")) writing(false);
  if (event.target.closest?.("#build")) able("cancel", true);
  if (event.target.closest?.("#cancel")) able("cancel", false);
});

const settings = (open) => document.getElementById("open-settings")?.setAttribute("aria-expanded", String(open));
const areOpen = () => document.getElementById("open-settings")?.getAttribute("aria-expanded") === "true";
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#open-settings")) settings(!areOpen());
  else if (areOpen() && !event.target.closest?.("#side") && event.target.isConnected) settings(false);
});
document.addEventListener("keydown", (event) => event.key === "Escape" && settings(false));

// Makes buttons of beginnings of a visitor's own text. A chat opens to be asked about it. Otherwise the
// first beginning is continued at once.
const tries = (element, watch) => {
  element.addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-try]");
    if (chosen) write(chosen.dataset.try);
  });
  watch("value", () => {
    able("cancel", Boolean(element.querySelector(".kl-progress")));
    const first = element.querySelector("[data-try]");
    const opening = element.querySelector("[data-opening]")?.dataset.opening;
    const memory = document.querySelector("#stores input:checked");
    if (opening) setTimeout(() => theChat.offer(JSON.parse(opening)));
    else if (first && memory) setTimeout(() => write(first.dataset.try));
  });
};
