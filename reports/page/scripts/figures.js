"use strict";
// Figures: Plotly is unpacked when the first figure comes near the window, and each figure is drawn then.
(() => {
  const holders = [...document.querySelectorAll(".plot")];
  if (!holders.length) return;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const figures = new Map();
  const specification = (holder) => {
    if (!figures.has(holder)) figures.set(holder, JSON.parse(holder.parentElement.querySelector("script").textContent));
    return figures.get(holder);
  };

  let unpacked;
  const library = () => {
    unpacked ??= (async () => {
      const script = document.createElement("script");
      script.textContent = await globalThis.evalsuiteUnpack(document.getElementById("plotly").textContent);
      document.head.append(script);
      return globalThis.Plotly;
    })();
    return unpacked;
  };

  // Names of colors, such as var(--s0), become the colors of the current theme.
  const painted = (value) => {
    if (typeof value === "string") return value.startsWith("var(--") ? style(value.slice(4, -1)) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, painted(inner)]));
    }
    return value;
  };

  const axis = () => ({
    gridcolor: style("--line"), linecolor: style("--line"), zerolinecolor: style("--line"), automargin: true,
    tickfont: { size: 12 }, title: { font: { size: 12 }, standoff: 8 }, showline: false,
  });
  const defaults = () => ({
    layout: {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: style("--muted") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      colorway: [0, 1, 2, 3, 4, 5, 6, 7].map((index) => style(`--s${index}`)),
      hoverlabel: {
        bgcolor: style("--card"), bordercolor: style("--ref"), align: "left",
        font: { color: style("--fg"), size: 12.5, family: getComputedStyle(document.body).fontFamily },
      },
      margin: { l: 8, r: 12, t: 12, b: 8, autoexpand: true },
      xaxis: axis(), yaxis: axis(),
      modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--ref"), activecolor: style("--fg") },
      hovermode: "closest", dragmode: "zoom",
    },
  });

  let printing = false;
  // Names of students differ at their ends.
  const shortened = (label, most) => (label.length > most ? `${label.slice(0, most / 2 - 1)}…${label.slice(-most / 2)}` : label);
  const widthOf = (holder) => (printing ? (holder.closest(".full") ? 960 : 460) : holder.clientWidth);

  // Where the legend goes, and the height of the figure with it: both follow from the width alone.
  const frameOf = (holder, figure) => {
    const width = widthOf(holder);
    const height = Number(holder.dataset.height);
    const names = figure.data.filter((trace) => trace.name && trace.showlegend !== false).map((trace) => trace.name);
    if (figure.layout.showlegend === false || names.length < 2) return { width, height };
    const longest = Math.max(...names.map((name) => name.length));
    if (names.length > 8 && width >= 760) {
      const legend = { x: 1.01, xanchor: "left", y: 1, yanchor: "top", font: { size: 12 }, tracegroupgap: 0 };
      return { width, height: Math.max(height, 19 * names.length + 40), legend };
    }
    const columns = Math.max(1, Math.floor((width - 30) / (7 * longest + 50)));
    const rows = Math.ceil(names.length / columns);
    const place = rows > 3 ? { y: -0.28, yanchor: "top" } : { y: 1.02, yanchor: "bottom" };
    const legend = { orientation: "h", x: 0, xanchor: "left", font: { size: 12 }, tracegroupgap: 0, ...place };
    return { width, height: height + 20 * rows + 10, legend };
  };
  // A figure takes its room before it is drawn: what a reader is about to click never moves.
  const reserve = (holder) => {
    const frame = frameOf(holder, specification(holder));
    if (frame.width) holder.style.height = `${frame.height}px`;
    return frame;
  };
  const layoutOf = (holder, figure) => {
    const layout = { ...painted(figure.layout), ...reserve(holder), template: defaults() };
    if (layout.width < 560) {
      for (const [name, each] of Object.entries(layout)) {
        if (/^[xy]axis/.test(name) && each.ticktext) {
          // Entities such as &lt; are one letter; they are never cut in half.
          each.ticktext = each.ticktext.map((label) => (label.includes("&") ? label : shortened(label, 16)));
          // The names of so many columns would overlap; hovering tells them.
          if (name.startsWith("x") && each.ticktext.length > 12) each.showticklabels = false;
        }
      }
    }
    return layout;
  };
  const configuration = {
    displaylogo: false, responsive: false, showTips: false,
    // Nothing of a report ever leaves the page: Plotly 4 would offer to upload a chart to its cloud.
    plotlyServerURL: "",
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg", filename: "evalsuite" },
  };

  const drawn = new Set();
  const draw = async (holder) => {
    if (drawn.has(holder)) return;
    drawn.add(holder);
    let plotly;
    try {
      plotly = await library();
    } catch {
      holder.hidden = true;
      holder.parentElement.querySelector("details").open = true;
      return;
    }
    render(plotly, holder);
  };
  const render = (plotly, holder) => {
    const figure = specification(holder);
    plotly.newPlot(holder, painted(figure.data), layoutOf(holder, figure), configuration);
    holder.dataset.drawn = "true";
    holder.on("plotly_click", (event) => {
      const key = event.points[0].data.meta?.keys?.[event.points[0].pointIndex?.[0]]?.[event.points[0].pointIndex?.[1]];
      if (key) document.dispatchEvent(new CustomEvent("samples", { detail: key }));
    });
  };
  const update = (holder) => {
    const figure = specification(holder);
    globalThis.Plotly.react(holder, painted(figure.data), layoutOf(holder, figure), configuration);
  };
  const redraw = () => [...drawn].filter((holder) => holder.dataset.drawn).forEach(update);

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });
  const widths = new WeakMap();
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const before = widths.get(target);
      widths.set(target, target.clientWidth);
      if (before === target.clientWidth) continue;
      if (target.dataset.drawn) update(target);
      else reserve(target);
    }
  });
  holders.forEach(reserve);
  for (const holder of holders) {
    near.observe(holder);
    resized.observe(holder);
  }
  document.addEventListener("theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    printing = true;
    redraw();
    if (!globalThis.Plotly) return;
    for (const holder of holders.filter((each) => !drawn.has(each))) {
      drawn.add(holder);
      render(globalThis.Plotly, holder);
    }
  });
  addEventListener("afterprint", () => {
    printing = false;
    redraw();
  });
})();
