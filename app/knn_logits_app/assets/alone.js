// Shows an answer that is a page of its own, as a chat shows it in a frame.

const alone = () => {
  mount(document.getElementById("answer"), { value: document.getElementById("content").textContent }, null, () => {});
  // A page that shows this one in a frame has to know its height.
  if (parent === window) return;
  const tell = () => {
    const { height } = document.documentElement.getBoundingClientRect();
    parent.postMessage({ type: "iframe:height", height: Math.ceil(height) + 4 }, "*");
  };
  new ResizeObserver(tell).observe(document.documentElement);
  tell();
  // It may ask for the height again, and it may be dark where the visitor's system is light.
  addEventListener("message", ({ data }) => {
    if (data?.type !== "iframe:look") return;
    document.documentElement.style.colorScheme = data.dark ? "dark" : "light";
    tell();
  });
};
