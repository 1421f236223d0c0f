"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (id) => document.getElementById(id);

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
    document.dispatchEvent(new Event("theme"));
  });

  // Parts of the page that few readers open are packed; their HTML was escaped like that of the page.
  const unpacked = new Map();
  const unpackInto = (packed) => {
    if (!unpacked.has(packed)) {
      unpacked.set(packed, globalThis.evalsuiteUnpack(packed.textContent).then((html) => packed.insertAdjacentHTML("beforebegin", html)));
    }
    return unpacked.get(packed);
  };
  for (const packed of all("details .packed")) packed.closest("details").addEventListener("toggle", () => unpackInto(packed));
  one("gap-student")?.addEventListener("change", async (event) => {
    await unpackInto(document.querySelector("#gap > .others"));
    for (const table of all(".gap-table")) table.hidden = table.dataset.checkpoint !== event.target.value;
  });

  // Sorting: within each teacher's group, the teacher first, undefined values last.
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
  };
  const sort = (head, direction) => {
    const table = head.closest("table");
    const column = [...head.parentElement.children].indexOf(head);
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    for (const body of table.tBodies) {
      if (body.classList.contains("anchor")) continue;
      const key = (row) => row.children[column].dataset.sort ?? row.children[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * compare(x, y);
      });
      body.append(...rows);
    }
  };
  for (const button of all(".sortable .sorter")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const now = head.getAttribute("aria-sort");
      sort(head, now === null ? button.dataset.first : now === "ascending" ? "descending" : "ascending");
    });
  }
  for (const table of all(".sortable")) table.addEventListener("sort", (event) => sort(...event.detail));

  // A link to something folded unfolds it.
  const unfold = () => {
    const target = one(decodeURIComponent(location.hash.slice(1).split("?")[0]));
    for (let at = target; at; at = at.parentElement) if (at.matches("details")) at.open = true;
    target?.querySelector(":scope > details")?.setAttribute("open", "");
    target?.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  if (location.hash.length > 1) unfold();
  for (const link of all("a[href^='#']")) link.addEventListener("click", () => { if (link.hash === location.hash) unfold(); });

  // Fade the right edge of tables that scroll horizontally.
  const fade = (wrap) => wrap.classList.toggle("more", wrap.scrollWidth - wrap.clientWidth - wrap.scrollLeft > 8);
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => fade(entry.target)));
  for (const wrap of all(".wrap")) {
    sizes.observe(wrap);
    wrap.addEventListener("scroll", () => fade(wrap), { passive: true });
  }

  // Print with all details open and in the light theme, which the figures follow.
  let theme;
  addEventListener("beforeprint", () => {
    all("details").forEach((element) => { element.dataset.was = element.open; element.open = true; });
    theme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    all("details").forEach((element) => { element.open = element.dataset.was === "true"; });
    if (theme === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  });
})();
