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
  /** The least that the axis reaches up to: nothing looks like nothing, not like noise. */
  least: number;
  height?: number;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const DAY_SECONDS = 86_400;

/** Times of one day, or days. */
const marks = (seconds: number[], step: number): string[] =>
  seconds.map((one) => (step >= DAY_SECONDS ? DAY : CLOCK).format(one * 1000));

const variable = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Plot({ title, at, lines, format, least, height = 132 }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const values = useRef<HTMLSpanElement>(null);
  const shown = useRef({ at, lines });
  shown.current = { at, lines };
  /** What the lines are at under the pointer; written past the renderer, since it follows every move. */
  const say = (index: number | null) => {
    const { at, lines } = shown.current;
    const when = index === null ? undefined : at[index];
    if (!values.current) return;
    if (index === null || when === undefined) values.current.textContent = "";
    else {
      const figures = lines.map((line) => {
        const value = line.values[index];
        return `${line.label} ${value === null || value === undefined ? "–" : format(value)}`;
      });
      values.current.textContent = `${CLOCK.format(when * 1000)}  ${figures.join(" · ")}`;
    }
  };
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
          hooks: { setCursor: [(self) => say(self.cursor.idx ?? null)] },
          scales: { y: { range: (_plot, _low, high) => [0, Math.max((high ?? 0) * 1.1, least)] } },
          padding: [8, 12, 0, 0],
          axes: [
            { ...axis, size: 26, space: 64, values: (_plot, splits, _axis, _space, step) => marks(splits, step) },
            { ...axis, size: 52, space: 36, values: (_plot, splits) => splits.map(format) },
          ],
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
        <h2 class="grow">{title}</h2>
        <span class="small legend">
          {lines.map((line) => (
            <span class={`plot-key ${line.colour.slice(2)}`} key={line.label}>
              {line.label}
            </span>
          ))}
        </span>
      </figcaption>
      <span class="plot-values small muted" ref={values} aria-hidden="true" />
      <div ref={frame} role="img" aria-label={`${title}: ${latest}`} />
    </figure>
  );
}
