"use strict";
// The leaderboard is one table: a filter changes its summary columns and hides the other benchmarks.
(() => {
  const table = document.querySelector(".board");
  if (!table) return;
  const views = JSON.parse(document.getElementById("board-views").textContent);
  const rule = document.getElementById("board-columns");
  const every = table.querySelectorAll("thead th[data-column]").length;
  const chosen = (name) => document.querySelector(`input[name=${name}]:checked`)?.value;
  const fallback = Object.keys(views)[0].split("|");

  const make = (tag, text, kind) => Object.assign(document.createElement(tag), { textContent: text, className: kind ?? "" });
  const fill = (cell, [text, interval, sort, hint]) => {
    cell.replaceChildren(text);
    if (interval) cell.append(make("small", interval, "ci"));
    cell.dataset.sort = sort ?? "";
    if (hint) cell.title = hint;
    else cell.removeAttribute("title");
  };
  const mark = (cell, place, reference) => {
    const bar = cell.querySelector(".mark");
    bar.hidden = !place;
    bar.style.setProperty("--teacher", `${reference ?? -10}%`);
    (place ?? []).forEach((value, at) => bar.style.setProperty(["--from", "--at", "--to"][at], `${value}%`));
  };

  const apply = () => {
    const view = views[`${chosen("protocol") ?? fallback[0]}|${chosen("scope") ?? fallback[1]}`];
    document.getElementById("empty").hidden = Boolean(view);
    document.getElementById("board").hidden = !view;
    if (!view) return;
    const shown = new Set(view.columns);
    rule.textContent = [...Array(every).keys()].filter((at) => !shown.has(at)).map((at) => `.board .b${at}`).join(",").concat("{display:none}");
    table.querySelectorAll(".first").forEach((cell) => cell.classList.remove("first"));
    table.querySelectorAll(`.b${view.columns[0]}`).forEach((cell) => cell.classList.add("first"));
    document.getElementById("board-caption").textContent = view.caption;
    document.getElementById("board-sentences").replaceChildren(...view.sentences.map((each) => make("p", each, "sub")));
    table.querySelector(".ticks").replaceChildren(...view.ticks.map(([place, text]) => {
      const tick = make("span", text);
      tick.style.left = `${place}%`;
      return tick;
    }));
    for (const row of table.querySelectorAll("tr[data-checkpoint]")) {
      const line = view.lines[row.dataset.checkpoint];
      row.hidden = !line;
      if (!line) continue;
      const [rank, about, summaries, place] = line;
      fill(row.querySelector(".rank"), rank);
      row.querySelector(".about").textContent = about;
      row.querySelectorAll(".summary").forEach((cell, at) => fill(cell, summaries[at]));
      mark(row, place, view.reference);
    }
    table.dispatchEvent(new CustomEvent("sort", { detail: [table.querySelector("th.rank"), "ascending"] }));
  };
  document.querySelectorAll("input[name=protocol], input[name=scope]").forEach((input) => input.addEventListener("change", apply));
})();
