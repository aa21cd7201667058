// Handles the row of tabs. All panels are mounted from the start. gradio mounts those of its own tabs only
// when they are opened, also with `render_children`, and a moment later sets their fields back to their first
// values, so that what was typed meanwhile is lost.
const tabs = [...element.querySelectorAll("[role=tab]")];
const open = (tab) => {
  tabs.forEach((one) => {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
  });
};
element.addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) open(tab);
});
element.addEventListener("keydown", (event) => {
  const place = tabs.indexOf(event.target);
  const last = tabs.length - 1;
  const next = {
    ArrowRight: place === last ? 0 : place + 1,
    ArrowLeft: place === 0 ? last : place - 1,
    Home: 0,
    End: last,
  }[event.key];
  if (place < 0 || next === undefined) return;
  event.preventDefault();
  open(tabs[next]);
  tabs[next].focus();
});
