"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);

  // Text only ever enters the page as text, so that no label or answer is read as HTML.
  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  // Theme: as the system, light, dark. Storage may be forbidden for files.
  const themes = ["auto", "light", "dark"];
  const remember = (value) => { try { localStorage.setItem("evalsuite-theme", value); } catch { /* not remembered */ } };
  const remembered = () => { try { return localStorage.getItem("evalsuite-theme"); } catch { return null; } };
  const paint = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = one("theme");
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
    button.setAttribute("aria-label", `Colour theme: ${theme === "auto" ? "as the system" : theme}`);
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
    for (const table of all(".gap-table")) table.hidden = table.dataset.subject !== event.target.value;
  });

  // Sorting: rows stay within their teacher's group; the teacher stays on top; what is undefined goes last.
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

  // A table that goes on to the right fades out there.
  const fade = (wrap) => wrap.classList.toggle("more", wrap.scrollWidth - wrap.clientWidth - wrap.scrollLeft > 8);
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => fade(entry.target)));
  for (const wrap of all(".wrap")) {
    sizes.observe(wrap);
    wrap.addEventListener("scroll", () => fade(wrap), { passive: true });
  }

  // Drill-down: the documents behind a number, unpacked at first use.
  const labels = JSON.parse(one("labels").textContent);
  const titles = JSON.parse(one("titles").textContent);
  let unpacked;
  const documents = () => {
    unpacked ??= (async () => {
      const bytes = Uint8Array.from(atob(one("documents").textContent.trim()), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      return JSON.parse(await new Response(stream).text());
    })();
    return unpacked;
  };
  const OUTCOMES = { extraction_failed: "no answer found", truncated: "cut off", looped: "looped", error: "error" };
  const say = (value) => (value === 1 ? ["right", "good"] : value === 0 ? ["wrong", "bad"] : [`score ${value}`, "muted"]);

  const choices = (answer) => {
    const list = make("ul", undefined, "choices");
    const low = Math.min(...answer.logprobs);
    const reach = Math.max(...answer.logprobs) - low || 1;
    answer.logprobs.forEach((logprob, index) => {
      const item = make("li", undefined, index === answer.gold ? "gold" : "");
      item.append(make("span", `${String.fromCharCode(65 + index)}${index === answer.gold ? ", right" : ""}`));
      const bar = make("i");
      bar.style.width = `${8 + (92 * (logprob - low)) / reach}%`;
      item.append(bar, make("b", logprob.toFixed(2).replace("-", "−")));
      list.append(item);
    });
    return list;
  };

  const answerBox = (who, answer) => {
    const box = make("div", undefined, "answer");
    const head = make("h4");
    head.append(make("span", who));
    const [word, kind] = say(answer.value);
    const ending = answer.outcome ? `${OUTCOMES[answer.outcome] ?? answer.outcome}, ${word}` : word;
    head.append(make("span", answer.logprobs?.length === 1 ? "" : ending, kind));
    box.append(head);
    if (answer.text !== undefined) box.append(make("p", answer.text === "" ? "(nothing)" : answer.text));
    if (answer.extracted !== undefined) box.append(make("p", `understood as: ${answer.extracted}`, "extracted"));
    if (answer.logprobs?.length > 1) box.append(choices(answer));
    else if (answer.logprobs) box.append(make("p", `log-likelihood ${answer.logprobs[0].toFixed(2).replace("-", "−")}`));
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
    const answers = make("div", undefined, "answers");
    if (row.teacher) answers.append(answerBox(`${teacher} (teacher)`, row.teacher));
    if (row.ranked) answers.append(answerBox(`${student}, ranked`, row.ranked));
    answers.append(answerBox(row.ranked ? `${student}, written` : student, row.student));
    box.append(answers);
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
    const how = isGap ? "ranked right, written wrong" : protocol === "loglikelihood" ? "ranked" : "written";
    one("drill-title").textContent = `${student} on ${titles[benchmark]}${place}: ${how}`;
    one("drill-about").textContent = "Unpacking…";
    one("drill-body").replaceChildren();
    dialog.showModal();
    let found;
    try {
      found = (await documents())[key];
    } catch {
      one("drill-about").textContent = "This browser cannot unpack the documents; report.json and the records have them.";
      return;
    }
    const teacher = teacherOf(subject);
    const count = (number) => number.toLocaleString("en");
    const about = isGap
      ? `${count(found.lost)} of ${count(found.of)} documents are right when ranked and wrong when written; ${count(found.won)} the other way round.`
      : teacher === null
        ? `${count(found.lost)} of ${count(found.of)} documents are not fully right.`
        : `Of ${count(found.of)} documents, ${count(found.lost)} are worse than ${teacher}'s and ${count(found.won)} better.`;
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

  // On paper everything that is folded is open.
  addEventListener("beforeprint", () => all("details").forEach((element) => { element.dataset.was = element.open; element.open = true; }));
  addEventListener("afterprint", () => all("details").forEach((element) => { element.open = element.dataset.was === "true"; }));
})();
