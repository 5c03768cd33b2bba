// A list of any length of which only the visible rows are in the page. Rows that come in above leave what a person
// looks at where it is.

import { useSignal } from "@preact/signals";
import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";
import { Component, type ComponentChildren, type RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";

interface Props<T> {
  rows: readonly T[];
  rowHeight: number;
  label: string;
  head?: ComponentChildren;
  render: (row: T, index: number) => ComponentChildren;
  keyOf: (row: T) => string;
  /** Called when the end comes near. */
  onEnd?: () => void;
  /** The row that the keyboard is at: it comes into view when the keyboard moved, which makes `moved` another object. */
  current?: number;
  moved?: object | null;
  /** Given the element that scrolls. */
  frame?: RefObject<HTMLDivElement | null>;
}

export function VirtualList<T>({ rows, rowHeight, label, head, render, keyOf, onEnd, current = -1, moved, frame: given }: Props<T>) {
  const own = useRef<HTMLDivElement>(null);
  const frame = given ?? own;
  const first = useRef<string | null>(null);
  const turn = useSignal(0);
  const virtualizer = useMemo(
    () =>
      new Virtualizer<HTMLDivElement, HTMLDivElement>({
        count: rows.length,
        getScrollElement: () => frame.current,
        estimateSize: () => rowHeight,
        overscan: 12,
        observeElementRect,
        observeElementOffset,
        scrollToFn: elementScroll,
        onChange: () => (turn.value += 1),
      }),
    [],
  );
  virtualizer.setOptions({ ...virtualizer.options, count: rows.length });
  useEffect(() => virtualizer._didMount(), []);
  useEffect(() => virtualizer._willUpdate());
  useLayoutEffect(() => {
    const element = frame.current;
    const before = first.current;
    first.current = rows[0] === undefined ? null : keyOf(rows[0]);
    if (!element || !element.scrollTop || before === null || before === first.current) return;
    const moved = rows.findIndex((row) => keyOf(row) === before);
    if (moved > 0) element.scrollTop += moved * rowHeight;
  }, [rows]);
  useEffect(() => {
    if (current >= 0) virtualizer.scrollToIndex(current);
  }, [moved]);
  // Reading the signal is what draws the list again when it was scrolled or got another size.
  const items = turn.value >= 0 ? virtualizer.getVirtualItems() : [];
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (onEnd && rows.length && last >= rows.length - 20) onEnd();
  }, [last, rows.length]);
  return (
    <div class="list" role="table" aria-label={label} aria-rowcount={rows.length}>
      {head}
      <div class="list-frame" ref={frame} tabIndex={0} role="rowgroup" aria-label={`${label}, scrollable`}>
        <div class="list-rows" style={{ height: `${virtualizer.getTotalSize()}px` }}>
          {items.map((item) => {
            const row = rows[item.index];
            return row === undefined ? null : (
              <Row
                key={keyOf(row)}
                row={row}
                index={item.index}
                start={item.start}
                height={rowHeight}
                current={item.index === current}
                render={render}
              />
            );
          })}
        </div>
      </div>
    </div>
  );
}

interface RowProps<T> {
  row: T;
  index: number;
  start: number;
  height: number;
  current: boolean;
  render: (row: T, index: number) => ComponentChildren;
}

/** Drawn again only if something of it changed: while a list is scrolled, that are the rows which come into view. */
class Row<T> extends Component<RowProps<T>> {
  override shouldComponentUpdate(next: RowProps<T>): boolean {
    const { row, index, start, height, current, render } = this.props;
    return (
      row !== next.row ||
      index !== next.index ||
      start !== next.start ||
      height !== next.height ||
      current !== next.current ||
      render !== next.render
    );
  }
  override render({ row, index, start, height, current, render }: RowProps<T>) {
    return (
      <div
        class={current ? "list-row current-row" : "list-row"}
        role="row"
        aria-rowindex={index + 1}
        style={{ height: `${height}px`, top: `${start}px` }}
      >
        {render(row, index)}
      </div>
    );
  }
}
