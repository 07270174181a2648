/** Icons of 16 by 16, drawn with one line width. */
const paths = {
  menu: "M2 4h12M2 8h12M2 12h12",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.5 10.5 14 14",
  down: "M4 6l4 4 4-4",
  up: "M4 10l4-4 4 4",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  check: "M3 8.5l3.5 3.5L13 4.5",
  plus: "M8 3v10M3 8h10",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.5 8.5h6l.5-8.5",
  edit: "M3 13l.7-3L11 2.7l2.3 2.3L6 12.3z",
  columns: "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
  group: "M3 3h4v4H3zM9 3h4v4H9zM3 9h4v4H3zM9 9h4v4H9z",
  star: "M8 2l1.8 3.8 4.2.5-3.1 2.9.8 4.1L8 11.3l-3.7 2 .8-4.1L2 6.3l4.2-.5z",
  user: "M8 8a2.7 2.7 0 1 0 0-5.4A2.7 2.7 0 0 0 8 8zM2.8 14c.4-2.8 2.5-4.2 5.2-4.2s4.8 1.4 5.2 4.2",
  pause: "M5.5 3v10M10.5 3v10",
  play: "M5 3l8 5-8 5z",
  download: "M8 2v8M4.5 7L8 10.5 11.5 7M3 13.5h10",
  warning: "M8 2.5l6 11H2zM8 7v3M8 12h.01",
  info: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 7.2V11M8 5h.01",
  clock: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 4.8V8l2.2 1.6",
  fleet: "M8 6.2a1.8 1.8 0 1 0 0 3.6 1.8 1.8 0 0 0 0-3.6zM8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z",
  table: "M2.5 3h11v10h-11zM2.5 6.3h11M2.5 9.7h11",
  policy: "M8 2l5 2v4c0 3-2 5-5 6-3-1-5-3-5-6V4z",
  changes: "M2.5 8h2.7l1.6-4.5 2.4 9L10.8 8h2.7",
  operation: "M8 5.6a2.4 2.4 0 1 0 0 4.8 2.4 2.4 0 0 0 0-4.8zM8 1.8v2M8 12.2v2M1.8 8h2M12.2 8h2M3.6 3.6 5 5M11 11l1.4 1.4M12.4 3.6 11 5M5 11l-1.4 1.4",
  join: "M8 3v10M3 8h10",
  logs: "M3 4h10M3 7h7M3 10h10M3 13h5",
} as const

export type IconName = keyof typeof paths

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="sign" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
      <path d={paths[name]} fill="none" stroke="currentColor" strokeWidth={name === "more" ? 2.2 : 1.4} strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  )
}
