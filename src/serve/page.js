// The page: ask, show the response as it is written, then its chain, confidence and alternatives.

let asked = 0;
let running = null; // what stops the request

/// The server's events for a request, one by one.
async function* events(body, signal) {
  const headers = { "content-type": "application/json" };
  if (HEAD.key) headers.authorization = "Bearer " + byId("key").value;
  const reply = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!reply.ok) {
    const { error } = await reply.json();
    const later = reply.headers.get("retry-after");
    throw new Error(error.message + (later ? ` (try again in ${later} s)` : ""));
  }
  const decoder = new TextDecoder();
  let text = "";
  for (const reader = reply.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server went away before the response was complete");
    text += decoder.decode(value, { stream: true });
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function request() {
  return {
    messages: [{ role: "user", content: byId("question").value }],
    temperature: numberIn("temperature"),
    seed: numberIn("seed"),
    max_tokens: numberIn("max-tokens"),
    stream: true,
    uqac: { scores: "all", explain: true },
  };
}

/// Splits the text into each token's text, and text that belongs to no token, by the tokens' byte offsets.
function pieces(text, offsets) {
  const bytes = new TextEncoder().encode(text);
  const part = (start, end) => new TextDecoder().decode(bytes.subarray(start, end));
  const [tokens, gaps] = [[], []];
  let at = 0;
  for (const [start, end] of offsets) {
    const from = Math.max(at, start);
    if (end > from && from > at) gaps.push([tokens.length, part(at, from)]);
    tokens.push(end > from ? part(from, end) : "");
    if (end > from) at = end;
  }
  if (at < bytes.length) gaps.push([tokens.length, part(at, bytes.length)]);
  return { tokens, gaps };
}

/// A response in the form that the report draws.
function itemOf(text, uqac) {
  const token = (row) => (row === null ? null : row + 1);
  const start = uqac.n_instr;
  return {
    run: 0,
    task: "response",
    id: ++asked,
    ...pieces(text, uqac.tokens.offsets),
    thought: uqac.thought,
    p: uqac.tokens.logprobs.map((logprob) => (logprob === null ? null : Math.exp(logprob))),
    chain: uqac.chain.map((link) => [token(link.row), link.score, link.similarity, token(link.from)]),
    kept: uqac.kept.map(token),
    span: uqac.answer?.tokens.map((position) => position - start),
    ensemble: uqac.ensemble.map((member) => [
      member.position === null ? null : member.position - start,
      member.text ?? "",
      Math.exp(member.log_answer + member.log_chain),
    ]),
    scores: HEAD.methods.map(([key]) => uqac.scores[key] ?? undefined),
  };
}

/// Never rounded to certainty, as in `uqac ask`.
const confidence = (p) => (p >= 0.995 && p < 1 ? ">0.99" : p < 0.01 ? number(p) : p.toFixed(2));

function showVerdict(uqac, finish, seconds, tokens) {
  const verdict = byId("verdict");
  verdict.hidden = false;
  const speed = `${tokens} tokens in ${seconds.toFixed(1)} s` + (finish === "length" ? "; the response was cut off" : "");
  const line = make("p", "headline", "No final answer was found in the response.");
  verdict.replaceChildren(line, make("p", "note", speed));
  const tell = (text, ...more) => verdict.insertBefore(make("p", "", text, ...more), verdict.lastChild);
  if (uqac.withheld) return line.replaceChildren(`The answer is withheld: ${uqac.withheld.why}.`);
  if (!uqac.answer) return;
  line.replaceChildren("Answer ", make("b", "", uqac.answer.text));
  if (uqac.confidence === null) return tell(`UQAC's P ${number(uqac.p)}, ${HEAD.ranking} ${number(uqac.scores[HEAD.ranking])}: ${HEAD.texts.uncalibrated}.`);
  const { tasks, n, ece } = uqac.calibration;
  const told = tell("Right with probability ", make("b", "", confidence(uqac.confidence)), " ");
  if (uqac.out_of_range) tell(HEAD.texts.out_of_range);
  else told.append(Object.assign(make("meter", ""), { max: 1, low: 0.5, high: 0.8, optimum: 1, value: uqac.confidence, ariaLabel: "confidence" }));
  tell(`From ${uqac.from}, calibrated on ${n} answers of ${tasks.join(", ")} (ECE ${number(ece)} on others).`);
}

function showFindings(text, uqac) {
  if (uqac.withheld) return;
  const item = itemOf(text, uqac);
  byId("controls").hidden = !uqac.chain.length;
  byId("response").replaceChildren(...drawResponse(item));
  const findings = byId("findings");
  if (item.ensemble.length > 1) findings.append(make("h2", "", "Alternatives, by their effect on P"), drawAlternatives(item));
  if (uqac.answer) findings.append(make("h2", "", "Scores"), drawScores(item));
}

async function ask() {
  const stop = new AbortController();
  running = stop;
  [byId("send").disabled, byId("stop").hidden] = [true, false];
  byId("result").hidden = false;
  for (const id of ["problem", "verdict", "controls"]) byId(id).hidden = true;
  const response = make("div", "response");
  byId("response").replaceChildren(response);
  byId("findings").replaceChildren();
  const begun = performance.now();
  let text = "";
  try {
    for await (const { choices } of events(request(), stop.signal)) {
      const [choice] = choices;
      const more = choice?.delta?.content;
      if (more) {
        text += more;
        response.append(more);
      }
      if (choice?.uqac) {
        const seconds = (performance.now() - begun) / 1000;
        showVerdict(choice.uqac, choice.finish_reason, seconds, choice.uqac.tokens.ids.length);
        showFindings(text, choice.uqac);
      }
    }
  } catch (error) {
    byId("problem").hidden = false;
    byId("problem").textContent = error.name === "AbortError" ? "Stopped." : error.message;
  }
  [byId("send").disabled, byId("stop").hidden] = [false, true];
  running = null;
}

byId("v-arcs").checked = true;
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) ask();
});
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
byId("examples").addEventListener("click", ({ target }) => {
  if (target.tagName !== "BUTTON" || running) return;
  byId("question").value = target.textContent;
  byId("ask").requestSubmit();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("controls").addEventListener("input", redraw);
addEventListener("resize", redraw);
