// LaTeX as MathML, which browsers render natively. An unknown command is shown as written, and a formula that
// cannot be parsed stays text.

const MATHML = byId("math").namespaceURI;
const TEX_SYMBOLS = {
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", varepsilon: "ε", zeta: "ζ", eta: "η", theta: "θ", iota: "ι",
  kappa: "κ", lambda: "λ", mu: "μ", nu: "ν", xi: "ξ", pi: "π", rho: "ρ", sigma: "σ", tau: "τ", phi: "φ", varphi: "φ", chi: "χ",
  psi: "ψ", omega: "ω", Gamma: "Γ", Delta: "Δ", Theta: "Θ", Lambda: "Λ", Pi: "Π", Sigma: "Σ", Phi: "Φ", Psi: "Ψ", Omega: "Ω",
  cdot: "·", times: "×", div: "÷", pm: "±", mp: "∓", le: "≤", leq: "≤", ge: "≥", geq: "≥", ne: "≠", neq: "≠", lt: "<", gt: ">",
  approx: "≈", equiv: "≡", sim: "∼", infty: "∞", in: "∈", notin: "∉", subset: "⊂", subseteq: "⊆", cup: "∪", cap: "∩",
  emptyset: "∅", varnothing: "∅", setminus: "∖", to: "→", rightarrow: "→", Rightarrow: "⇒", implies: "⇒", iff: "⇔", mapsto: "↦",
  ldots: "…", dots: "…", cdots: "⋯", sum: "∑", prod: "∏", int: "∫", partial: "∂", nabla: "∇", angle: "∠", triangle: "△",
  perp: "⊥", parallel: "∥", circ: "°", degree: "°", prime: "′", ell: "ℓ", langle: "⟨", rangle: "⟩", lfloor: "⌊", rfloor: "⌋",
  lceil: "⌈", rceil: "⌉", mid: "|", vert: "|", forall: "∀", exists: "∃", quad: " ", qquad: "  ",
};
const TEX_FUNCTIONS = new Set("sin cos tan sec csc cot arcsin arccos arctan ln log exp lim max min gcd lcm det".split(" "));
const TEX_TEXT = new Set("text textrm textbf textit mathrm mathbf mathbb mathcal mbox operatorname".split(" "));
const TEX_SKIPPED = new Set("left right big Big bigg Bigg displaystyle limits".split(" "));
const TEX_FENCES = { pmatrix: ["(", ")"], bmatrix: ["[", "]"], vmatrix: ["|", "|"], matrix: ["", ""], cases: ["{", ""] };
const TEX_ACCENTS = { overline: "‾", bar: "‾", vec: "→", overrightarrow: "→", hat: "^", widehat: "^", tilde: "~" };

function mathElement(name, ...children) {
  const element = document.createElementNS(MATHML, name);
  element.append(...children);
  return element;
}

/// The formula as a `math` element, or null.
function drawTex(source) {
  const tokens = source.match(/\\[a-zA-Z]+|\\[^]|[0-9]+(?:\.[0-9]+)?|\s+|[^]/gu) ?? [];
  let at = 0;
  let depth = 0;
  const skipSpace = () => { while (tokens[at]?.trim() === "") at++; };

  /// Everything up to one of the closing tokens, which is consumed as well.
  function row(...closing) {
    if (++depth > 50) throw new RangeError("nested too deeply");
    const parts = [];
    for (skipSpace(); !closing.includes(tokens[at]); skipSpace()) {
      if (at >= tokens.length) {
        if (!closing.includes(undefined)) throw new RangeError("not closed");
        break;
      }
      parts.push(scripted());
    }
    at++;
    depth--;
    return mathElement("mrow", ...parts);
  }

  function scripted() {
    let base = atom();
    for (skipSpace(); tokens[at] === "^" || tokens[at] === "_"; skipSpace()) {
      const name = tokens[at++] === "^" ? "msup" : "msub";
      base = mathElement(name, base, argument());
    }
    return base;
  }

  function argument() {
    skipSpace();
    if (/^[0-9]{2,}/.test(tokens[at] ?? "")) { // of `\frac12`, a digit
      const digits = tokens[at];
      tokens.splice(at, 1, digits[0], digits.slice(1));
    }
    return atom();
  }

  /// The text between braces, verbatim.
  function words() {
    skipSpace();
    if (tokens[at] !== "{") return tokens[at++] ?? "";
    let text = "";
    for (let open = 1; open > 0; ) {
      const token = tokens[++at];
      if (token === undefined) throw new RangeError("not closed");
      open += (token === "{") - (token === "}");
      if (open > 0) text += token;
    }
    at++;
    return text;
  }

  function matrix(name) {
    const [open, close] = TEX_FENCES[name] ?? ["", ""];
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(mathElement("mtd", row("&", "\\\\", "\\end")));
      const ended = tokens[at - 1];
      if (ended === "\\end") break;
      if (ended === "\\\\") rows.push([]);
    }
    words();
    const table = mathElement("mtable", ...rows.map((cells) => mathElement("mtr", ...cells)));
    return mathElement("mrow", mathElement("mo", open), table, mathElement("mo", close));
  }

  function atom() {
    skipSpace();
    const token = tokens[at++];
    if (token === undefined || token === "}") throw new RangeError("something is missing");
    if (token === "{") return row("}");
    if (/^[0-9]/.test(token)) return mathElement("mn", token);
    if (/^\p{L}$/u.test(token)) return mathElement("mi", token);
    if (!token.startsWith("\\")) return mathElement("mo", token === "-" ? "−" : token);
    const name = token.slice(1);
    if (TEX_SKIPPED.has(name)) {
      skipSpace();
      if (tokens[at] === ".") at++;
      return mathElement("mrow");
    }
    if (/^[dtc]?frac$/.test(name)) return mathElement("mfrac", argument(), argument());
    if (name === "binom") {
      const stack = mathElement("mfrac", argument(), argument());
      stack.setAttribute("linethickness", "0");
      return mathElement("mrow", mathElement("mo", "("), stack, mathElement("mo", ")"));
    }
    if (name === "sqrt") {
      skipSpace();
      if (tokens[at] !== "[") return mathElement("msqrt", argument());
      at++;
      const degree = row("]");
      return mathElement("mroot", argument(), degree);
    }
    if (name === "boxed") return argument();
    if (name === "begin") return matrix(words());
    if (TEX_TEXT.has(name)) return mathElement("mtext", words().replace(/^ | $/g, "\u00a0"));
    if (TEX_ACCENTS[name]) return mathElement("mover", argument(), mathElement("mo", TEX_ACCENTS[name]));
    if (TEX_FUNCTIONS.has(name)) return mathElement("mi", name);
    if (Object.hasOwn(TEX_SYMBOLS, name)) return mathElement("mo", TEX_SYMBOLS[name]);
    if (/^[,;: ]$/.test(name)) return mathElement("mtext", "\u2009");
    if (/^[!()[\]]$/.test(name)) return mathElement("mrow");
    return mathElement("mtext", /^[{}%$&#_|]$/.test(name) ? name : token);
  }

  try {
    const math = mathElement("math", row(undefined));
    math.setAttribute("title", source);
    return math;
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}

/// Text with its formulas drawn; one without delimiters but with commands, powers or indices is treated as a
/// formula.
function withFormulas(text) {
  if (!/[$]|\\[([]/.test(text)) return /\\[a-zA-Z]|[\^_]/.test(text) && text.length < 300 ? [drawTex(text) ?? text] : [text];
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(/\$\$([^]+?)\$\$|\\\[([^]+?)\\\]|\\\(([^]+?)\\\)|\$((?:\\[^]|[^$\\\n])+)\$(?![0-9])/g)) {
    const source = found[1] ?? found[2] ?? found[3] ?? found[4];
    const amount = found[4] !== undefined && (source.trim() !== source || /^[0-9.,]+ [^\\^_=]*$/.test(source)); // "$5 and $6"
    const math = amount ? null : drawTex(source);
    if (!math) continue;
    parts.push(text.slice(end, found.index), math);
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}
