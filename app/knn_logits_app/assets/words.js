// Runs once for each answer of the page: opens the sources of a word, and saves the trace.
const words = () => [...element.querySelectorAll(".kl-w[role=button]")];
const close = () => {
  element.querySelectorAll(".kl-panel").forEach((panel) => (panel.hidden = true));
  words().forEach((word) => word.setAttribute("aria-expanded", "false"));
};
const open = (word) => {
  const was = word.getAttribute("aria-expanded") === "true";
  close();
  if (was) return;
  const panel = document.getElementById(word.getAttribute("aria-controls"));
  if (!panel) return;
  word.setAttribute("aria-expanded", "true");
  panel.hidden = false;
  panel.scrollIntoView({ block: "nearest", behavior: "smooth" });
};
const save = (button) => {
  const file = new Blob([button.dataset.trace], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = "trace.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
element.addEventListener("click", (event) => {
  const word = event.target.closest(".kl-w[role=button]");
  if (word) return open(word);
  const button = event.target.closest("button");
  if (button && button.matches(".kl-save")) save(button);
  if (button && button.matches(".kl-close")) {
    const word = words().find((one) => one.getAttribute("aria-expanded") === "true");
    close();
    if (word) word.focus();
  }
});
element.addEventListener("keydown", (event) => {
  const word = event.target.closest(".kl-w[role=button]");
  if (event.key === "Escape") close();
  if (!word) return;
  const all = words();
  const place = all.indexOf(word);
  if (event.key === "Enter" || event.key === " ") open(word);
  else if (event.key === "ArrowRight" && all[place + 1]) all[place + 1].focus();
  else if (event.key === "ArrowLeft" && all[place - 1]) all[place - 1].focus();
  else return;
  event.preventDefault();
});
