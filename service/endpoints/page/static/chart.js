// Curves over steps.

import uPlot from "./vendor/uplot/uPlot.esm.js";

/** Draw `data`, the steps and then the values of each of `series`, into `root`; return what `destroy` removes. */
export function drawCurves(root, series, data, { height = 320, x = "step", y } = {}) {
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8884" } };
  return new uPlot(
    {
      width: Math.max(260, Math.min(560, root.clientWidth)),
      height,
      scales: { x: { time: false } },
      axes: [{ ...axis, label: x }, { ...axis, size: 64, label: y }],
      series: [{ label: "step" }, ...series],
    },
    data,
    root,
  );
}
