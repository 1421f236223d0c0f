"use strict";
// The table of students: search, filter by mixer, choose columns and sort; the address keeps the state.
(() => {
  const form = document.querySelector("form.filter");
  if (!form) return;
  const table = document.querySelector("table.students");
  const rows = [...table.tBodies[0].rows];
  const boxes = [...form.querySelectorAll("[name=column]")];
  const hidden = document.head.appendChild(document.createElement("style"));
  const text = (row) => row.cells[0].textContent.toLowerCase();

  const state = () => {
    const found = new URLSearchParams();
    const sorted = table.querySelector("th[aria-sort]");
    const left = boxes.filter((box) => !box.checked).map((box) => box.value);
    if (form.q.value) found.set("q", form.q.value);
    if (form.mixer?.value) found.set("mixer", form.mixer.value);
    if (left.length) found.set("without", left.join("."));
    if (sorted) found.set("sort", `${[...sorted.parentElement.children].indexOf(sorted)}.${sorted.getAttribute("aria-sort")}`);
    return found.toString();
  };
  const apply = () => {
    const words = form.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const mixer = (form.mixer?.value ?? "").toLowerCase();
    for (const row of rows) row.hidden = !(text(row).includes(mixer) && words.every((word) => text(row).includes(word)));
    hidden.textContent = boxes.filter((box) => !box.checked)
      .map((box) => `.students tr > :nth-child(${Number(box.value) + 1}) { display: none; }`).join("\n");
    const shown = rows.filter((row) => !row.hidden).length;
    form.querySelector("output").textContent = `${shown === rows.length ? "" : `${shown} of `}${rows.length} student${rows.length === 1 ? "" : "s"}`;
  };
  const remember = () => {
    const kept = state();
    // Browsers may forbid it for local files; the page works without.
    try { history.replaceState(null, "", kept ? `#students?${kept}` : location.hash.startsWith("#students?") ? "#students" : location.hash || "#"); } catch { /* no state */ }
  };
  const restore = () => {
    const [anchor, kept] = location.hash.slice(1).split("?");
    if (anchor !== "students" || !kept) return;
    const given = new URLSearchParams(kept);
    form.q.value = given.get("q") ?? "";
    if (form.mixer) form.mixer.value = given.get("mixer") ?? "";
    const left = (given.get("without") ?? "").split(".");
    for (const box of boxes) box.checked = !left.includes(box.value);
    const [column, direction] = (given.get("sort") ?? "").split(".");
    const head = table.tHead.rows[0].cells[column];
    if (head && direction) table.dispatchEvent(new CustomEvent("sort", { detail: [head, direction] }));
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { apply(); remember(); });
  table.addEventListener("click", (event) => { if (event.target.closest(".sorter")) remember(); });
  restore();
  apply();
})();
