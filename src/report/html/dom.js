// Helpers shared by all parts of a page.

const byId = (id) => document.getElementById(id);
const HEAD = JSON.parse(byId("head").textContent);

/// An element with a class, and children that are elements or text; text stays text.
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/// The number in a field, or null.
const numberIn = (id) => (byId(id).value.trim() === "" ? null : Number(byId(id).value));

/// A number formatted for display.
function number(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  const tiny = x !== 0 && size < 0.001;
  const text = tiny ? x.toExponential(1) : x.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 3);
  return text.replaceAll("-", "−");
}
