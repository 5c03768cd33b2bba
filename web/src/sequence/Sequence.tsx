// The sequence diagram of a task across protocols, with the hub in the middle. The heads of the lanes stay in view; a
// diagram that is at its end follows the steps that come, one that a person has scrolled stays where it is.

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Sequence as Model, SequenceStep } from "../api/types";
import { clock, humanKind, plural } from "../ui/format";
import { HEAD, type Lane, type Layout, layout, noteWidth, type Row, textOf } from "./layout";
import { atEnd, kept } from "./place";
import { save, standalone } from "./standalone";

interface Props {
  sequence: Model;
  /** What a file of it is called. */
  name: string;
  selected: number | null;
  onSelect: (step: SequenceStep) => void;
}

const ZOOMS = [0.5, 0.6, 0.75, 0.9, 1, 1.2, 1.5, 2];
/** As much as is needed to see all lanes, but never smaller than this. */
const LEAST_FIT = 0.7;
const PROTOCOLS = ["chiffon", "agentmsg", "forge", "a2acp", "coven", "api", "none"];

export function Sequence({ sequence, name, selected, onSelect }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const drawing = useRef<SVGSVGElement>(null);
  const follows = useRef(false);
  const width = useSignal(900);
  /** The scale that a person chose; null while the drawing fits itself to the frame. */
  const zoom = useSignal<number | null>(null);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) width.value = Math.round(entry.contentRect.width);
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const drawn = useMemo(() => layout(sequence, width.value), [sequence, width.value]);
  const fitting = Math.min(1, Math.max(LEAST_FIT, width.value / drawn.width));
  const scale = zoom.value ?? fitting;
  useLayoutEffect(() => {
    const element = frame.current;
    if (element && follows.current) element.scrollTop = element.scrollHeight;
  }, [drawn.height]);
  // Where not all lanes are seen, the hub is in the middle of what is seen.
  const middle = (drawn.lanes.find((lane) => lane.kind === "hub")?.x ?? 0) * scale;
  useLayoutEffect(() => {
    const element = frame.current;
    if (element && zoom.value === null) element.scrollLeft = Math.max(0, middle - element.clientWidth / 2);
  }, [middle]);
  const zoomTo = (next: number | null | undefined) => {
    const element = frame.current;
    if (!element || next === undefined) return;
    const to = next ?? fitting;
    const left = kept(element.scrollLeft, element.clientWidth / 2, scale, to);
    const top = kept(element.scrollTop, element.clientHeight / 2, scale, to);
    zoom.value = next;
    requestAnimationFrame(() => element.scrollTo(left, top));
  };
  return (
    <div class="sequence">
      <div class="sequence-tools">
        <Legend lanes={drawn.lanes} lost={sequence.steps.some((step) => step.lost.length > 0)} />
        <button
          type="button"
          class="button quiet"
          aria-label="Zoom out"
          disabled={scale <= (ZOOMS[0] ?? 0)}
          onClick={() => zoomTo(ZOOMS.findLast((one) => one < scale - 0.001))}
        >
          −
        </button>
        <button type="button" class="button quiet zoom" aria-label="Zoom: fit to the page" onClick={() => zoomTo(null)}>
          {Math.round(scale * 100)} %
        </button>
        <button
          type="button"
          class="button quiet"
          aria-label="Zoom in"
          disabled={scale >= (ZOOMS.at(-1) ?? 2)}
          onClick={() => zoomTo(ZOOMS.find((one) => one > scale + 0.001))}
        >
          +
        </button>
        <button
          type="button"
          class="button"
          onClick={() => {
            const svg = drawing.current;
            if (!svg) return;
            const background = getComputedStyle(document.documentElement).getPropertyValue("--surface").trim();
            save(`${name}.svg`, "image/svg+xml", standalone(svg, background));
          }}
        >
          Download SVG
        </button>
      </div>
      <div
        class="sequence-frame"
        ref={frame}
        tabIndex={0}
        role="group"
        aria-label="Sequence diagram, scrollable"
        onScroll={(event) => {
          const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
          follows.current = scrollTop > 0 && atEnd(scrollTop, clientHeight, scrollHeight);
        }}
      >
        <svg
          class="sequence-heads"
          aria-hidden="true"
          width={drawn.width * scale}
          height={HEAD * scale}
          viewBox={`0 0 ${drawn.width} ${HEAD}`}
        >
          <rect class="seq-sheet" width={drawn.width} height={HEAD} />
          {drawn.lanes.map((lane) => (
            <g key={lane.id}>
              <LaneLine lane={lane} height={drawn.height} />
              <LaneHead lane={lane} />
            </g>
          ))}
        </svg>
        <svg
          ref={drawing}
          class="sequence-drawing"
          data-testid="task-sequence"
          role="group"
          aria-label={`${plural(sequence.steps.length, "step")} between ${drawn.lanes.map((lane) => lane.id).join(", ")}`}
          width={drawn.width * scale}
          height={drawn.height * scale}
          viewBox={`0 0 ${drawn.width} ${drawn.height}`}
        >
          <Drawing drawn={drawn} running={sequence.running} selected={selected} onSelect={onSelect} />
        </svg>
      </div>
    </div>
  );
}

function Drawing(props: { drawn: Layout; running: boolean; selected: number | null; onSelect: (step: SequenceStep) => void }) {
  const { drawn, selected, onSelect } = props;
  const last = drawn.rows.at(-1);
  return (
    <>
      <defs>
        {PROTOCOLS.map((name) => (
          <marker
            id={`head-${name}`}
            key={name}
            viewBox="0 0 10 10"
            refX="9"
            refY="5"
            markerWidth="7"
            markerHeight="7"
            orient="auto-start-reverse"
          >
            <path d="M0 1 9 5 0 9z" class={`arrow-head p-${name}`} />
          </marker>
        ))}
      </defs>
      {drawn.lanes.map((lane) => (
        <LaneLine lane={lane} height={drawn.height} key={lane.id} />
      ))}
      {drawn.lanes.map((lane) => (
        <LaneHead lane={lane} key={lane.id} />
      ))}
      {drawn.bars.map((bar) => (
        <rect
          key={bar.key}
          class={`seq-bar p-${bar.protocol ?? "none"}${bar.open ? " open" : ""}`}
          x={bar.x - 5}
          y={bar.from}
          width="10"
          height={bar.to - bar.from}
          rx="5"
        />
      ))}
      {drawn.breaks.map((pause) => (
        <g class="seq-break" key={pause.y}>
          <line x1="8" x2={drawn.width - 8} y1={pause.y} y2={pause.y} />
          <text x="12" y={pause.y - 5}>
            {pause.text} later
          </text>
        </g>
      ))}
      {drawn.rows.map((row) => (
        <StepRow row={row} width={drawn.width} compact={drawn.compact} chosen={selected === row.step.n} onSelect={onSelect} key={row.step.n} />
      ))}
      {props.running && last ? (
        <g class="seq-running">
          <circle cx="17" cy={drawn.height - 22} r="4" />
          <text x="28" y={drawn.height - 18}>
            goes on
          </text>
        </g>
      ) : null}
    </>
  );
}

function Legend({ lanes, lost }: { lanes: Lane[]; lost: boolean }) {
  const protocols = [...new Set(lanes.map((lane) => lane.protocol).filter((one): one is string => !!one))];
  return (
    <ul class="legend grow">
      {protocols.map((name) => (
        <li key={name} class={`p-${name}`}>
          {name}
        </li>
      ))}
      {lost ? <li class="legend-lost">lost in translation</li> : null}
    </ul>
  );
}

function LaneLine({ lane, height }: { lane: Lane; height: number }) {
  return lane.kind === "hub" ? (
    <rect class="seq-hub" x={lane.x - 7} y="30" width="14" height={height - 38} rx="7" />
  ) : (
    <line class="seq-line" x1={lane.x} x2={lane.x} y1={HEAD - 8} y2={height - 8} />
  );
}

function LaneHead({ lane }: { lane: Lane }) {
  const width = Math.max(64, lane.label.length * 7.1 + 24);
  return (
    <g class={`seq-head kind-${lane.kind} p-${lane.protocol ?? "none"}`}>
      <rect x={lane.x - width / 2} y="8" width={width} height="30" rx="15" />
      <text x={lane.x} y="28" text-anchor="middle">
        {lane.label}
        <title>{lane.id}</title>
      </text>
      {lane.kind === "hub" ? null : (
        <text x={lane.x} y="54" text-anchor="middle" class="seq-protocol">
          {lane.protocol ?? lane.kind}
        </text>
      )}
    </g>
  );
}

function StepRow(props: { row: Row; width: number; compact: boolean; chosen: boolean; onSelect: (step: SequenceStep) => void }) {
  const { row, width, chosen, onSelect } = props;
  const { step } = row;
  const choose = () => onSelect(step);
  const drop = Math.max(0, ...row.arrows.map((arrow) => arrow.drop));
  const lost = step.lost.length ? `\nLost in translation: ${step.lost.map((one) => humanKind(one.feature)).join(", ")}` : "";
  return (
    <g
      class={`seq-step tone-${row.tone}${chosen ? " chosen" : ""}`}
      tabindex={0} // an attribute of SVG is spelt in small letters, or the element gets no focus
      role="button"
      aria-pressed={chosen}
      onClick={choose}
      onKeyDown={(event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          choose();
        }
      }}
    >
      <title>{`${row.time} ${row.text}: ${step.source} → ${step.target} at ${clock(step.at)}\n${textOf(step)}${lost}`}</title>
      <rect class="seq-hit" data-hit="" x="4" y={row.y - 26} width={width - 8} height={38 + drop} rx="8" />
      {row.time ? (
        <text class={props.compact ? "seq-time compact" : "seq-time"} x={props.compact ? 6 : 12} y={row.y + (props.compact ? 14 : 4)}>
          {row.time}
        </text>
      ) : null}
      {row.note !== null ? <Note row={row} at={row.note} /> : <Arrows row={row} />}
      {step.lost.length > 0 && <LostMark row={row} />}
    </g>
  );
}

function Note({ row, at }: { row: Row; at: number }) {
  const text = row.mark ? `${row.mark} ${row.text}` : row.text;
  const width = noteWidth(row.text, row.mark);
  return (
    <g class="seq-note">
      <rect x={at - width / 2} y={row.y - 14} width={width} height="26" rx="13" />
      <text x={at} y={row.y + 3} text-anchor="middle">
        {text}
      </text>
    </g>
  );
}

function Arrows({ row }: { row: Row }) {
  return (
    <>
      {row.arrows.map((arrow) => {
        const towards = Math.sign(arrow.x2 - arrow.x1);
        return (
          <g key={arrow.x1} class={`p-${arrow.protocol ?? "none"}`}>
            <line
              class="seq-arrow"
              x1={arrow.x1 + towards * 7}
              x2={arrow.x2 - towards * 8}
              y1={row.y + arrow.drop}
              y2={row.y + arrow.drop}
              marker-end={`url(#head-${arrow.protocol ?? "none"})`}
            />
            <circle class="seq-from" cx={arrow.x1 + towards * 7} cy={row.y + arrow.drop} r="3" />
          </g>
        );
      })}
      <text class="seq-text" x={row.textX} y={row.y - 9} text-anchor={row.anchor}>
        {row.mark ? <tspan class="seq-mark">{`${row.mark} `}</tspan> : null}
        {row.text}
      </text>
    </>
  );
}

function LostMark({ row }: { row: Row }) {
  const first = row.arrows[0];
  const x = row.arrows.length === 2 ? (first?.x2 ?? row.textX) : first ? first.x1 * 0.7 + first.x2 * 0.3 : row.textX;
  const why = row.step.lost.map((lost) => `${humanKind(lost.feature)}: ${lost.why}`).join("\n");
  return (
    <g class="seq-lost" transform={`translate(${x} ${row.y})`}>
      <title>{`Lost in translation\n${why}`}</title>
      <path d="M0-9 9 0 0 9-9 0z" />
      <text y="3.500" text-anchor="middle">
        {row.step.lost.length}
      </text>
    </g>
  );
}
