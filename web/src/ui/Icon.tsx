// Icons as paths on a 16 × 16 grid, so that no file is fetched.

const PATHS = {
  overview: "M2 2h5v5H2zM9 2h5v5H9zM2 9h5v5H2zM9 9h5v5H9z",
  inbox: "M2 9h3l1.5 2h3L11 9h3M2 9l2-6h8l2 6v4H2z",
  tasks: "M2 4h1M2 8h1M2 12h1M6 4h8M6 8h8M6 12h8",
  agents: "M8 2v2M4 5h8v6H4zM6.5 8v.5M9.5 8v.5M6 14v-3M10 14v-3M2 7v2M14 7v2",
  dead: "M3 3h10v7l-5 4-5-4zM6 6l4 4M10 6l-4 4",
  contracts: "M4 2h6l2 2v10H4zM6 6h4M6 9h4M6 12h2",
  playground: "M4 3l9 5-9 5z",
  wire: "M1 8h3l2-5 3 10 2-5h4",
  more: "M2 8a1 1 0 1 0 2 0a1 1 0 1 0-2 0M7 8a1 1 0 1 0 2 0a1 1 0 1 0-2 0M12 8a1 1 0 1 0 2 0a1 1 0 1 0-2 0",
  audit: "M8 1.5l5 2v4c0 3.5-2 5.5-5 7-3-1.500-5-3.500-5-7v-4zM6 8l1.500 1.500L10.500 6.500",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linejoin="round" stroke-linecap="round">
      <path d={PATHS[name]} />
    </svg>
  );
}
