// The items: filtering and order. Their JSON is described in data.rs.

const ITEMS = JSON.parse(byId("items-data").textContent).flatMap((items, run) => items.map((item) => Object.assign(item, { run })));
const PAGE = 100; // summaries added at a time
const OUTCOMES = { correct: "correct", incorrect: "incorrect", no_answer: "no answer", not_graded: "not graded", error: "error" };

const chosenMethod = () => Number(byId("f-method").value);

/// Text to search, built on first use.
function haystack(item) {
  item.haystack ??= [item.question, item.tokens.join(""), item.target, item.answer ?? ""].join("\n").toLowerCase();
  return item.haystack;
}

function matches(item, filter) {
  if (filter.outcome === "truncated" ? !item.truncated : filter.outcome && item.outcome !== filter.outcome) return false;
  if (filter.run !== "" && item.run !== Number(filter.run)) return false;
  const score = item.scores[filter.method] ?? null;
  if ((filter.min !== null || filter.max !== null) && score === null) return false;
  if (filter.min !== null && score < filter.min) return false;
  if (filter.max !== null && score > filter.max) return false;
  return !filter.text || haystack(item).includes(filter.text);
}

/// Items without a score come last in either direction; ties keep the run's order.
function sorted(items, method, direction) {
  if (!direction) return items;
  const sign = direction === "down" ? -1 : 1;
  const key = (item) => item.scores[method] ?? null;
  return items.slice().sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (x - y);
  });
}

let shown = []; // what the filters let through
let drawn = 0; // how many of them are in the list

function refresh() {
  const filter = {
    outcome: byId("f-outcome").value,
    run: byId("f-run").value,
    method: chosenMethod(),
    min: numberIn("f-min"),
    max: numberIn("f-max"),
    text: byId("f-text").value.toLowerCase(),
  };
  shown = sorted(ITEMS.filter((item) => matches(item, filter)), filter.method, byId("f-sort").value);
  drawn = 0;
  byId("list").replaceChildren();
  const correct = shown.filter((item) => item.outcome === "correct").length;
  const share = shown.length ? `, ${((100 * correct) / shown.length).toFixed(1)} % correct` : "";
  byId("count").textContent = `${shown.length} of ${ITEMS.length} items${share}`;
  more();
}

function more() {
  const part = shown.slice(drawn, drawn + PAGE);
  byId("list").append(...part.map((item) => make("li", "", summary(item))));
  drawn += part.length;
  byId("more").hidden = drawn >= shown.length;
  byId("more").textContent = `Show more (${shown.length - drawn} left)`;
}

/// The summary line of an item; its body is drawn when the item is opened.
function summary(item) {
  const { model, task } = HEAD.runs[item.run];
  const name = `${new Set(HEAD.runs.map((run) => run.model)).size > 1 ? model.split("/").pop() + " " : ""}${item.task ?? task}`;
  const label = OUTCOMES[item.outcome] + (item.truncated ? ", cut" : "");
  const what = make("span", "what", make("small", "", `${name} ${item.id}`), ...withFormulas(item.question.slice(0, 300)));
  const score = make("span", "score", number(item.scores[chosenMethod()]));
  score.title = HEAD.methods[chosenMethod()]?.[1] ?? "";
  const details = make("details", "item", make("summary", "", make("span", "badge " + item.outcome, label), score, what));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(drawItem(item));
    else if (!details.open) while (details.children.length > 1) details.lastChild.remove();
  });
  return details;
}

{
  for (const [i, method] of HEAD.methods.entries()) byId("f-method").append(new Option(method[1], i));
  for (const [i, run] of HEAD.runs.entries()) byId("f-run").append(new Option(run.model + " · " + run.task, i));
  byId("f-run-label").hidden = HEAD.runs.length < 2;
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
