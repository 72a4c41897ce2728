// The report's start.

function start() {
  fillChoices();
  const form = byId("filters");
  form.addEventListener("submit", (event) => event.preventDefault());
  let waiting = 0;
  form.addEventListener("input", (event) => {
    if (event.target.id.startsWith("v-")) return redraw();
    clearTimeout(waiting);
    waiting = setTimeout(refresh, event.target.tagName === "INPUT" ? 200 : 0);
  });
  form.addEventListener("reset", () => setTimeout(refresh)); // when the fields have their values
  byId("more").addEventListener("click", more);
  addEventListener("resize", redraw);
  refresh();
}

start();
