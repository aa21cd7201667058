// Marks the page as ready once everything on it is mounted.
() => {
  const say = () => {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
    if (!tabs.length || !panels.every((panel) => panel && panel.childElementCount)) {
      requestAnimationFrame(say);
      return;
    }
    panels.forEach((panel, place) => {
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tabs[place].id);
    });
    document.documentElement.dataset.ready = "true";
  };
  say();
}
