"use strict";
// Sample browser: filters over the index of a benchmark; the shards of the documents shown load on demand.
(() => {
  const one = (id) => document.getElementById(id);
  const dialog = one("samples");
  if (!dialog) return;
  const { labels, teachers, cells, outcomes: OUTCOMES } = JSON.parse(one("sample-facts").textContent);
  const PAGE = 20;
  const field = Object.fromEntries(["cell", "student", "context", "outcome", "flip", "document"].map((name) => [name, one(`sample-${name}`)]));
  const [about, body] = [one("sample-about"), one("sample-body")];

  // Text is inserted as textContent only, so that no label or response is parsed as HTML.
  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const option = (value, text) => Object.assign(make("option", text), { value });
  const count = (number) => number.toLocaleString("en");
  const minus = (text) => text.replace("-", "−");

  // Browsers load no data from disk, but scripts: every file of samples calls this function.
  const waiting = new Map();
  const loaded = new Map();
  globalThis.evalsuiteSamples = (name, packed) => waiting.get(name)?.(packed);
  const load = (name) => {
    if (!loaded.has(name)) {
      const data = new Promise((resolve, reject) => {
        waiting.set(name, resolve);
        const script = document.createElement("script");
        script.src = `samples/${name}.js`;
        script.onload = () => { script.remove(); reject(new Error("empty")); };
        script.onerror = () => { script.remove(); reject(new Error("missing")); };
        document.head.append(script);
      }).then(async (packed) => JSON.parse(await globalThis.evalsuiteUnpack(packed)));
      data.catch(() => loaded.delete(name));
      loaded.set(name, data);
    }
    return loaded.get(name);
  };

  const FLIPS = {
    lost: (own, other) => own < other,
    gained: (own, other) => own > other,
    right: (own, other) => own >= 0.5 && other >= 0.5,
    wrong: (own, other) => own < 0.5 && other < 0.5,
  };
  let rows = [];
  let start = 0;
  let turn = 0;
  let opposite = null;

  const counterpart = (cell) => cells.find((each) => each.benchmark === cell.benchmark && each.protocol !== cell.protocol);
  const column = (index, checkpoint) => index.checkpoints.indexOf(checkpoint);

  const offer = (select, options, chosen) => {
    select.replaceChildren(...options.map(([value, text]) => option(value, text)));
    select.value = options.some(([value]) => value === chosen) ? chosen : options[0]?.[0] ?? "";
    select.closest("label").hidden = options.length < 2;
  };

  const filter = async () => {
    const mine = ++turn;
    const cell = cells.find((each) => each.name === field.cell.value);
    body.replaceChildren();
    about.textContent = "Loading…";
    let index;
    const other = counterpart(cell);
    const wantsOther = field.flip.value === "protocol" && other;
    try {
      [index, opposite] = await Promise.all([load(cell.name), wantsOther ? load(other.name) : null]);
    } catch {
      about.textContent = `The file samples/${cell.name}.js cannot be read; it must lie next to this page.`;
      rows = [];
      show();
      return;
    }
    if (mine !== turn) return;
    const students = index.checkpoints.filter((checkpoint) => teachers[checkpoint] !== null);
    offer(field.student, (students.length ? students : index.checkpoints).map((each) => [String(each), labels[each]]), field.student.value);
    const contexts = [...new Set(index.contexts ?? [])].sort((a, b) => a - b);
    offer(field.context, [["", "all"], ...contexts.map((each) => [String(each), `${count(each)} tokens`])], field.context.value);
    field.context.closest("label").hidden = contexts.length < 2;
    const student = Number(field.student.value);
    const [own, theirs] = [column(index, student), column(index, teachers[student])];
    const hasChoices = theirs >= 0 && index.choices[own].some((choice) => choice !== null);
    const flips = [["", "all"]];
    if (theirs >= 0) flips.push(["lost", "lost: scores lower than the teacher"], ["gained", "gained: scores higher"]);
    if (theirs >= 0 && !cell.lower) flips.push(["right", "both right"], ["wrong", "both wrong"]);
    if (hasChoices) flips.push(["same", "same choice"], ["changed", "another choice"]);
    if (other && cell.protocol === "generation") flips.push(["protocol", "right under log-likelihood, wrong here"]);
    offer(field.flip, flips, field.flip.value);
    const endings = [...new Set(Object.values(index.outcomes[own] ?? {}))];
    offer(field.outcome, [["", "all"], ["ok", OUTCOMES.ok], ...endings.map((each) => [each, OUTCOMES[each] ?? each])], field.outcome.value);
    field.outcome.closest("label").hidden = endings.length === 0;

    const flip = field.flip.value;
    const sign = cell.lower ? -1 : 1;
    const wanted = field.document.value.trim().toLowerCase();
    let right = new Set();
    if (flip === "protocol" && opposite && column(opposite, student) >= 0) {
      const values = opposite.values[column(opposite, student)];
      right = new Set(opposite.documents.filter((_, at) => values[at] >= 0.5));
    }
    rows = [];
    index.documents.forEach((id, at) => {
      const value = index.values[own][at];
      if (value === null) return;
      if (wanted && !id.toLowerCase().includes(wanted)) return;
      if (field.context.value && String(index.contexts[at]) !== field.context.value) return;
      if (field.outcome.value && (index.outcomes[own][at] ?? "ok") !== field.outcome.value) return;
      if (flip === "protocol") {
        if (value >= 0.5 || !right.has(id)) return;
      } else if (flip === "same" || flip === "changed") {
        const [a, b] = [index.choices[own][at], index.choices[theirs][at]];
        if (a === null || b === null || (a === b) !== (flip === "same")) return;
      } else if (flip) {
        const before = index.values[theirs][at];
        if (before === null || !FLIPS[flip](sign * value, sign * before)) return;
      }
      rows.push(at);
    });
    start = 0;
    await show(cell, index, student);
  };

  let current = null;
  const show = async (cell = current?.cell, index = current?.index, student = current?.student) => {
    one("sample-back").disabled = start === 0;
    one("sample-next").disabled = start + PAGE >= rows.length;
    if (!cell) return;
    current = { cell, index, student };
    const mine = turn;
    const chosen = rows.slice(start, start + PAGE);
    about.textContent = `${count(rows.length)} of ${count(index.documents.length)} documents${rows.length ? `, shown: ${count(start + 1)} to ${count(start + chosen.length)}` : ""}`;
    const shards = [...new Set(chosen.map((at) => Math.floor(at / index.shard)))];
    let details;
    try {
      details = new Map(await Promise.all(shards.map(async (number) => [number, (await load(`${cell.name}.${number}`)).rows])));
    } catch {
      about.textContent = `A file of samples/${cell.name}.*.js cannot be read; it must lie next to this page.`;
      return;
    }
    if (mine !== turn) return;
    body.replaceChildren(...chosen.map((at) => card(cell, index, student, at, details.get(Math.floor(at / index.shard))[at % index.shard])));
    body.scrollTop = 0;
  };

  const choiceName = (index) => (index < 26 ? String.fromCharCode(65 + index) : `choice ${index + 1}`);
  const verdict = (value) => (value === 1 ? ["right", "good"] : value === 0 ? ["wrong", "bad"] : value === null ? ["", "muted"] : [`score ${value}`, "muted"]);
  const logprobs = (values, gold) => {
    const list = make("ul", undefined, "choices");
    const low = Math.min(...values);
    const reach = Math.max(...values) - low || 1;
    values.forEach((logprob, at) => {
      const item = make("li", undefined, at === gold ? "gold" : "");
      const bar = make("i");
      bar.style.width = `${8 + (92 * (logprob - low)) / reach}%`;
      item.append(make("span", `${choiceName(at)}${at === gold ? ", right" : ""}`), bar, make("b", minus(logprob.toFixed(2))));
      list.append(item);
    });
    return list;
  };
  const response = (who, index, checkpoint, at, row) => {
    const place = column(index, checkpoint);
    const detail = row?.responses[place];
    const box = make("div", undefined, "response");
    const head = make("h4");
    const [word, kind] = verdict(index.values[place]?.[at] ?? null);
    const ending = index.outcomes[place]?.[at];
    head.append(make("span", who), make("span", ending ? `${OUTCOMES[ending] ?? ending}, ${word}` : word, kind));
    box.append(head);
    const choice = index.choices[place]?.[at];
    if (detail?.text !== undefined) box.append(make("p", detail.text === "" ? "(empty response)" : detail.text));
    else if (choice !== null && choice !== undefined) box.append(make("p", `chooses ${choiceName(choice)}`));
    if (detail?.extracted !== undefined) box.append(make("p", `extracted answer: ${detail.extracted}`, "extracted"));
    if (detail?.logprobs?.length > 1) box.append(logprobs(detail.logprobs, row.gold));
    else if (detail?.logprobs) box.append(make("p", `log-likelihood ${minus(detail.logprobs[0].toFixed(2))}`));
    return box;
  };
  const card = (cell, index, student, at, row) => {
    const box = make("article", undefined, "doc");
    const head = make("header");
    head.append(make("code", index.documents[at]));
    if (index.contexts?.[at] >= 0) head.append(make("span", `${count(index.contexts[at])} tokens`));
    if (index.seeds) head.append(make("span", `seed ${index.seeds[at]}`));
    box.append(head);
    if (row.question) box.append(make("p", row.question, "question"));
    const expected = row.expected ?? (row.gold === undefined ? "" : choiceName(row.gold));
    if (expected) {
      const line = make("p", undefined, "expected");
      line.append(make("span", "Expected: ", "muted"), make("b", expected));
      box.append(line);
    }
    const responses = make("div", undefined, "responses");
    const teacher = teachers[student];
    if (teacher !== null && column(index, teacher) >= 0) responses.append(response(`${labels[teacher]} (teacher)`, index, teacher, at, row));
    if (field.flip.value === "protocol" && opposite) {
      responses.append(response(`${labels[student]}, log-likelihood`, opposite, student, opposite.documents.indexOf(index.documents[at]), null));
    }
    responses.append(response(labels[student], index, student, at, row));
    box.append(responses);
    return box;
  };

  const titles = new Map(cells.map((cell) => [cell.name, `${cell.title}, ${cell.protocol === "loglikelihood" ? "log-likelihood" : "generation"}`]));
  offer(field.cell, [...titles], "");
  dialog.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  const open = (key) => {
    if (key) {
      const parts = key.split("|");
      const isGap = parts[0] === "gap";
      const [checkpoint, benchmark, protocol, context] = isGap ? [parts[1], parts[2], "generation", parts[3]] : parts;
      field.cell.value = `${benchmark}.${protocol}`;
      if (teachers[checkpoint] !== null || !field.student.value) field.student.replaceChildren(option(checkpoint, labels[checkpoint]));
      field.context.replaceChildren(option(context && context !== "*" ? context : "", ""));
      field.flip.replaceChildren(isGap ? option("protocol", "") : option("", ""));
      field.outcome.replaceChildren(option("", ""));
      field.document.value = "";
    }
    dialog.showModal();
    filter();
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-key]");
    if (button) open(button.dataset.key);
    if (event.target === dialog) dialog.close();
  });
  document.addEventListener("samples", (event) => open(event.detail));
  one("sample-open").addEventListener("click", () => open());
  one("sample-close").addEventListener("click", () => dialog.close());
  for (const each of Object.values(field)) each.addEventListener(each === field.document ? "input" : "change", filter);
  one("sample-back").addEventListener("click", () => { start -= PAGE; show(); });
  one("sample-next").addEventListener("click", () => { start += PAGE; show(); });
})();
