// When a view is read: at once, then at most once in `pause` milliseconds however much changes, never twice at a time,
// and once more where something changed while it was being read.

export interface Reader {
  /** Reads now: a person asked for it. */
  now: () => void;
  /** Reads as soon as the pace allows: something changed. */
  soon: () => void;
  stop: () => void;
}

export function reader(read: (signal: AbortSignal) => Promise<void>, pause: number): Reader {
  const abort = new AbortController();
  let busy = false;
  let dirty = false;
  let timer: ReturnType<typeof setTimeout> | null = null;
  let begun = Number.NEGATIVE_INFINITY;

  const run = async () => {
    if (timer !== null) clearTimeout(timer);
    timer = null;
    if (abort.signal.aborted) return;
    if (busy) {
      dirty = true;
      return;
    }
    busy = true;
    dirty = false;
    begun = Date.now();
    try {
      await read(abort.signal);
    } finally {
      busy = false;
      if (dirty) soon();
    }
  };
  const soon = () => {
    if (busy) dirty = true;
    else if (timer === null && !abort.signal.aborted) {
      timer = setTimeout(() => void run(), Math.max(0, begun + pause - Date.now()));
    }
  };
  return {
    now: () => void run(),
    soon,
    stop: () => {
      abort.abort();
      if (timer !== null) clearTimeout(timer);
    },
  };
}
