// A plot over time, drawn by uPlot. Colours come from the page's own variables, so light and dark fit.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  values: (number | null)[];
  colour: string;
  /** Filled down to the axis. */
  area?: boolean;
}

interface Props {
  title: string;
  at: number[];
  lines: Line[];
  format: (value: number) => string;
  height?: number;
}

const variable = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Plot({ title, at, lines, format, height = 150 }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = lines.map((line) => line.label).join();
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const draw = () => {
      plot.current?.destroy();
      const grid = { stroke: variable("--line"), width: 1 };
      const axis = { stroke: variable("--ink-3"), font: "11px system-ui", grid, ticks: { show: false } };
      plot.current = new uPlot(
        {
          width: Math.max(160, element.clientWidth),
          height,
          legend: { show: false },
          cursor: { points: { size: 6 }, y: false },
          scales: { y: { range: (_plot, _low, high) => [0, Math.max(high * 1.1, 1e-9)] } },
          axes: [axis, { ...axis, size: 56, values: (_plot, marks) => marks.map(format) }],
          series: [
            {},
            ...lines.map((line) => ({
              label: line.label,
              stroke: variable(line.colour),
              width: 1.75,
              fill: line.area ? `${variable(line.colour)}22` : undefined,
              points: { show: false },
              spanGaps: false,
            })),
          ] as uPlot.Series[],
        },
        [at, ...lines.map((line) => line.values)] as uPlot.AlignedData,
        element,
      );
    };
    draw();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(160, element.clientWidth), height }));
    resized.observe(element);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      resized.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    plot.current?.setData([at, ...lines.map((line) => line.values)] as uPlot.AlignedData);
  }, [at, ...lines.map((line) => line.values)]);
  const latest = lines
    .map((line) => {
      const value = line.values.findLast((one) => one !== null);
      return `${line.label} ${value === undefined || value === null ? "–" : format(value)}`;
    })
    .join(", ");
  return (
    <figure class="plot">
      <figcaption class="row">
        <h3 class="grow">{title}</h3>
        <span class="small legend">
          {lines.map((line) => (
            <span class={`plot-key ${line.colour.slice(2)}`} key={line.label}>
              {line.label}
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={frame} role="img" aria-label={`${title}: ${latest}`} />
    </figure>
  );
}
