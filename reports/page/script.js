"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);

  // Text is inserted as textContent only, so that no label or response is parsed as HTML.
  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  // Theme: system, light, dark. Browsers may forbid storage for local files.
  const themes = ["auto", "light", "dark"];
  const remember = (value) => { try { localStorage.setItem("evalsuite-theme", value); } catch { /* storage unavailable */ } };
  const remembered = () => { try { return localStorage.getItem("evalsuite-theme"); } catch { return null; } };
  const paint = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = one("theme");
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
    button.setAttribute("aria-label", `Color theme: ${theme === "auto" ? "system" : theme}`);
    button.dataset.now = theme;
  };
  paint(themes.includes(remembered()) ? remembered() : "auto");
  one("theme").addEventListener("click", () => {
    const next = themes[(themes.indexOf(one("theme").dataset.now) + 1) % themes.length];
    paint(next);
    remember(next);
  });

  // Filters: one recovery table per protocol and category.
  const chosen = (name, otherwise) => document.querySelector(`input[name=${name}]:checked`)?.value ?? otherwise;
  const views = all(".view");
  const filter = () => {
    const protocol = chosen("protocol", views[0]?.dataset.protocol);
    const scope = chosen("scope", "all");
    let shown = 0;
    for (const view of views) {
      view.hidden = view.dataset.protocol !== protocol || view.dataset.scope !== scope;
      shown += !view.hidden;
    }
    one("empty").hidden = shown > 0;
  };
  all("input[name=protocol], input[name=scope]").forEach((input) => input.addEventListener("change", filter));

  one("gap-student")?.addEventListener("change", (event) => {
    for (const table of all(".gap-table")) table.hidden = table.dataset.checkpoint !== event.target.value;
  });

  // Sorting: within each teacher's group, the teacher first, undefined values last.
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
  };
  for (const button of all(".sortable .sorter")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const table = head.closest("table");
      const column = [...head.parentElement.children].indexOf(head);
      const now = head.getAttribute("aria-sort");
      const first = button.dataset.first;
      const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
      all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      for (const body of table.tBodies) {
        if (body.classList.contains("anchor")) continue;
        const key = (row) => row.children[column].dataset.sort ?? "";
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          return sign * compare(x, y);
        });
        body.append(...rows);
      }
    });
  }

  // Fade the right edge of tables that scroll horizontally.
  const fade = (wrap) => wrap.classList.toggle("more", wrap.scrollWidth - wrap.clientWidth - wrap.scrollLeft > 8);
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => fade(entry.target)));
  for (const wrap of all(".wrap")) {
    sizes.observe(wrap);
    wrap.addEventListener("scroll", () => fade(wrap), { passive: true });
  }

  // Drill-down: the documents behind a score, decompressed on first use.
  const labels = JSON.parse(one("labels").textContent);
  const titles = JSON.parse(one("titles").textContent);
  let decompressed;
  const documents = () => {
    decompressed ??= (async () => {
      const bytes = Uint8Array.from(atob(one("documents").textContent.trim()), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      return JSON.parse(await new Response(stream).text());
    })();
    return decompressed;
  };
  const OUTCOMES = { extraction_failed: "no answer extracted", truncated: "truncated", looped: "looped", error: "error" };
  const verdict = (value) => (value === 1 ? ["correct", "good"] : value === 0 ? ["wrong", "bad"] : [`score ${value}`, "muted"]);

  const choiceName = (index) => (index < 26 ? String.fromCharCode(65 + index) : `choice ${index + 1}`);
  const choices = (response) => {
    const list = make("ul", undefined, "choices");
    const low = Math.min(...response.logprobs);
    const reach = Math.max(...response.logprobs) - low || 1;
    response.logprobs.forEach((logprob, index) => {
      const item = make("li", undefined, index === response.gold ? "gold" : "");
      item.append(make("span", `${choiceName(index)}${index === response.gold ? ", correct" : ""}`));
      const bar = make("i");
      bar.style.width = `${8 + (92 * (logprob - low)) / reach}%`;
      item.append(bar, make("b", logprob.toFixed(2).replace("-", "−")));
      list.append(item);
    });
    return list;
  };

  const responseBox = (who, response) => {
    const box = make("div", undefined, "response");
    const head = make("h4");
    head.append(make("span", who));
    const [word, kind] = verdict(response.value);
    const ending = response.outcome ? `${OUTCOMES[response.outcome] ?? response.outcome}, ${word}` : word;
    head.append(make("span", response.logprobs?.length === 1 ? "" : ending, kind));
    box.append(head);
    if (response.text !== undefined) box.append(make("p", response.text === "" ? "(empty response)" : response.text));
    if (response.extracted !== undefined) box.append(make("p", `extracted answer: ${response.extracted}`, "extracted"));
    if (response.logprobs?.length > 1) box.append(choices(response));
    else if (response.logprobs) box.append(make("p", `log-likelihood ${response.logprobs[0].toFixed(2).replace("-", "−")}`));
    return box;
  };

  const card = (row, student, teacher) => {
    const box = make("article", undefined, "doc");
    const head = make("header");
    head.append(make("code", row.id));
    if (row.context) head.append(make("span", `${row.context.toLocaleString("en")} tokens`));
    if (row.seed !== undefined) head.append(make("span", `seed ${row.seed}`));
    box.append(head);
    if (row.question) box.append(make("p", row.question, "question"));
    if (row.expected) {
      const line = make("p", undefined, "expected");
      line.append(make("span", "Expected: ", "muted"), make("b", row.expected));
      box.append(line);
    }
    const responses = make("div", undefined, "responses");
    if (row.teacher) responses.append(responseBox(`${teacher} (teacher)`, row.teacher));
    if (row.loglikelihood) responses.append(responseBox(`${student}, log-likelihood`, row.loglikelihood));
    responses.append(responseBox(row.loglikelihood ? `${student}, generation` : student, row.student));
    box.append(responses);
    return box;
  };

  const dialog = one("drill");
  const teacherOf = (index) => teachers[index];
  const teachers = JSON.parse(one("teachers").textContent);
  const open = async (key) => {
    const parts = key.split("|");
    const isGap = parts[0] === "gap";
    const [subject, benchmark, protocol, context] = isGap ? [parts[1], parts[2], "", parts[3]] : parts;
    const student = labels[subject];
    const place = context && context !== "*" ? `, ${Number(context).toLocaleString("en")} tokens` : "";
    const how = isGap ? "correct under log-likelihood, wrong under generation" : protocol === "loglikelihood" ? "log-likelihood" : "generation";
    one("drill-title").textContent = `${student} on ${titles[benchmark]}${place}: ${how}`;
    one("drill-about").textContent = "Loading…";
    one("drill-body").replaceChildren();
    dialog.showModal();
    let found;
    try {
      found = (await documents())[key];
    } catch {
      one("drill-about").textContent = "This browser does not support decompression of the documents.";
      return;
    }
    const teacher = teacherOf(subject);
    const count = (number) => number.toLocaleString("en");
    const about = isGap
      ? `${count(found.lost)} of ${count(found.of)} documents are correct under log-likelihood and wrong under generation; ${count(found.won)} are the reverse.`
      : teacher === null
        ? `${count(found.lost)} of ${count(found.of)} documents are not fully correct.`
        : `Of ${count(found.of)} documents, ${count(found.lost)} score lower than ${teacher} and ${count(found.won)} higher.`;
    one("drill-about").textContent = `${about} ${found.documents.length ? `Shown: ${found.documents.length}.` : "None to show."}`;
    one("drill-body").replaceChildren(...found.documents.map((row) => card(row, student, teacher)));
    one("drill-body").scrollTop = 0;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-key]");
    if (button) open(button.dataset.key);
    if (event.target === dialog) dialog.close();
  });
  one("drill-close").addEventListener("click", () => dialog.close());

  // Expand all details for printing.
  addEventListener("beforeprint", () => all("details").forEach((element) => { element.dataset.was = element.open; element.open = true; }));
  addEventListener("afterprint", () => all("details").forEach((element) => { element.open = element.dataset.was === "true"; }));
})();
