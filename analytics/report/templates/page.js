"use strict";
// Draws the plots of this page from the data in it. Colours are names of the style sheet's, so a
// change between light and dark draws them anew; zooming one plot of time zooms them all.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"],
  };
  const painted = (value, styles) => {
    if (typeof value === "string") {
      return value.replace(/var\((--[\w-]+)\)/g, (_, name) => styles.getPropertyValue(name).trim());
    }
    if (Array.isArray(value)) return value.map((one) => painted(one, styles));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, styles)]));
  };
  const draw = () => {
    const styles = getComputedStyle(document.documentElement);
    return Promise.all(Object.entries(figures).map(([id, figure]) => {
      const layout = painted(figure.layout, styles);
      layout.dragmode = touch ? false : "zoom"; // a finger scrolls the page
      layout.font.family = getComputedStyle(document.body).fontFamily;
      return Plotly.react(id, painted(figure.data, styles), layout, config);
    })).then(() => { document.documentElement.dataset.drawn = dark.matches ? "dark" : "light"; });
  };
  const follow = (id, change) => {
    const update = {};
    if ("xaxis.range[0]" in change) {
      update["xaxis.range"] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    } else if ("xaxis.autorange" in change) {
      update["xaxis.range"] = figures[id].layout.xaxis.range.slice();
    } else return;
    for (const other of Object.keys(figures)) {
      const now = document.getElementById(other).layout.xaxis.range;
      const same = now.every((end, place) => end === update["xaxis.range"][place]);
      if (!same) Plotly.relayout(other, { "xaxis.range": update["xaxis.range"].slice() });
    }
  };
  draw().then(() => {
    for (const id of Object.keys(figures)) {
      document.getElementById(id).on("plotly_relayout", (change) => follow(id, change));
    }
  });
  dark.addEventListener("change", draw);
})();
