// Where a scrolled frame stands after its content changed its size, so that what a person looks at stays there.

/** The offset that keeps the content under `anchor` (pixels from the frame's edge) where it is. */
export const kept = (offset: number, anchor: number, from: number, to: number): number =>
  Math.max(0, ((offset + anchor) * to) / from - anchor);

/** Whether the frame shows the end of its content: then it follows what is added. */
export const atEnd = (offset: number, visible: number, whole: number): boolean => offset + visible >= whole - 24;
