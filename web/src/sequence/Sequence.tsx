// The sequence diagram of a task across protocols, with the hub in the middle.

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Sequence as Model, SequenceStep } from "../api/types";
import { humanKind } from "../ui/format";
import { HEAD, type Lane, layout, type Row, textOf } from "./layout";

interface Props {
  sequence: Model;
  selected: number | null;
  onSelect: (step: SequenceStep) => void;
}

const ZOOMS = [0.6, 0.75, 0.9, 1, 1.2, 1.5, 2];

export function Sequence({ sequence, selected, onSelect }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const width = useSignal(900);
  const zoom = useSignal(3);
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
  const scale = ZOOMS[zoom.value] ?? 1;
  const summary = `${sequence.steps.length} steps between ${drawn.lanes.map((lane) => lane.id).join(", ")}`;
  return (
    <div class="sequence">
      <div class="sequence-tools">
        <Legend lanes={drawn.lanes} />
        <button
          type="button"
          class="button quiet"
          aria-label="Zoom out"
          disabled={zoom.value === 0}
          onClick={() => (zoom.value -= 1)}
        >
          −
        </button>
        <button
          type="button"
          class="button quiet"
          aria-label="Zoom in"
          disabled={zoom.value === ZOOMS.length - 1}
          onClick={() => (zoom.value += 1)}
        >
          +
        </button>
      </div>
      <div class="sequence-frame" ref={frame} tabIndex={0} role="group" aria-label="Sequence diagram, scrollable">
        <svg
          data-testid="task-sequence"
          role="group"
          aria-label={summary}
          width={drawn.width * scale}
          height={drawn.height * scale}
          viewBox={`0 0 ${drawn.width} ${drawn.height}`}
        >
          <defs>
            {["chiffon", "agentmsg", "forge", "a2acp", "coven", "api", "none"].map((name) => (
              <marker id={`head-${name}`} key={name} viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
                <path d="M0 1 9 5 0 9z" class={`arrow-head p-${name}`} />
              </marker>
            ))}
          </defs>
          {drawn.lanes.map((lane) => (
            <LaneHead lane={lane} height={drawn.height} key={lane.id} />
          ))}
          {drawn.bars.map((bar) => (
            <rect
              key={`${bar.x}/${bar.from}`}
              class={bar.open ? "seq-bar open" : "seq-bar"}
              x={bar.x - 5}
              y={bar.from}
              width="10"
              height={bar.to - bar.from}
              rx="4"
            />
          ))}
          {drawn.breaks.map((pause) => (
            <g class="seq-break" key={pause.y}>
              <line x1="8" x2={drawn.width - 8} y1={pause.y} y2={pause.y} />
              <text x="12" y={pause.y + 14}>
                {pause.text} later
              </text>
            </g>
          ))}
          {drawn.rows.map((row) => (
            <StepRow row={row} width={drawn.width} chosen={selected === row.step.n} onSelect={onSelect} key={row.step.n} />
          ))}
        </svg>
      </div>
    </div>
  );
}

function Legend({ lanes }: { lanes: Lane[] }) {
  const protocols = [...new Set(lanes.map((lane) => lane.protocol).filter((one): one is string => !!one))];
  return (
    <ul class="legend grow">
      {protocols.map((name) => (
        <li key={name} class={`p-${name}`}>
          {name}
        </li>
      ))}
      <li class="legend-lost">lost in translation</li>
    </ul>
  );
}

function LaneHead({ lane, height }: { lane: Lane; height: number }) {
  const width = Math.max(72, lane.label.length * 7.4 + 24);
  return (
    <g class={`seq-lane kind-${lane.kind} p-${lane.protocol ?? "none"}`}>
      <line x1={lane.x} x2={lane.x} y1={HEAD - 6} y2={height - 8} />
      <rect x={lane.x - width / 2} y="10" width={width} height="30" rx="8" />
      <text x={lane.x} y="30" text-anchor="middle">
        {lane.label}
        <title>{lane.id}</title>
      </text>
      <text x={lane.x} y="54" text-anchor="middle" class="seq-protocol">
        {lane.kind === "hub" ? "" : (lane.protocol ?? lane.kind)}
      </text>
    </g>
  );
}

function StepRow(props: { row: Row; width: number; chosen: boolean; onSelect: (step: SequenceStep) => void }) {
  const { row, width, chosen, onSelect } = props;
  const { step } = row;
  const choose = () => onSelect(step);
  const name = `${row.time}: ${step.source} to ${step.target}, ${humanKind(step.kind)}. Show the wire.`;
  return (
    <g
      class={`seq-step tone-${row.tone}${chosen ? " chosen" : ""}`}
      tabIndex={0}
      role="button"
      aria-label={name}
      onClick={choose}
      onKeyDown={(event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          choose();
        }
      }}
    >
      <title>{`${step.at}\n${step.source} → ${step.target}\n${textOf(step)}`}</title>
      <rect class="seq-hit" x="2" y={row.y - 26} width={width - 4} height="38" rx="6" />
      <text class="seq-time" x="12" y={row.y + 4}>
        {row.time}
      </text>
      {row.note !== null ? (
        <g class="seq-note">
          <rect
            x={row.note - row.text.length * 3.25 - 12}
            y={row.y - 14}
            width={row.text.length * 6.5 + 24}
            height="24"
            rx="12"
          />
          <text x={row.note} y={row.y + 3} text-anchor="middle">
            {row.text}
          </text>
        </g>
      ) : (
        <>
          {row.arrows.map((arrow) => {
            const towards = Math.sign(arrow.x2 - arrow.x1);
            return (
              <line
                key={arrow.x1}
                class={`seq-arrow p-${arrow.protocol ?? "none"}`}
                x1={arrow.x1 + towards * 6}
                x2={arrow.x2 - towards * 6}
                y1={row.y + arrow.drop}
                y2={row.y + arrow.drop}
                marker-end={`url(#head-${arrow.protocol ?? "none"})`}
              />
            );
          })}
          <text class="seq-text" x={row.textX} y={row.y - 8} text-anchor="middle">
            {row.text}
          </text>
        </>
      )}
      {step.lost.length > 0 && <LostMark row={row} />}
    </g>
  );
}

function LostMark({ row }: { row: Row }) {
  const x = row.arrows.length === 2 ? (row.arrows[0]?.x2 ?? row.textX) : row.textX;
  const why = row.step.lost.map((lost) => `${humanKind(lost.feature)}: ${lost.why}`).join("\n");
  return (
    <g class="seq-lost" transform={`translate(${x} ${row.y + 1})`}>
      <title>{`Lost in translation\n${why}`}</title>
      <path d="M0-8 8 0 0 8-8 0z" />
      <text y="4" text-anchor="middle">
        {row.step.lost.length}
      </text>
    </g>
  );
}
