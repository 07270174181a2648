import type { IconName } from "../part/Icon"
import type { Key } from "../text/text"

/** The pages in the navigation and the palette, with their keys. */
export const places: { href: string; icon: IconName; title: Key; keys: string }[] = [
  { href: "/", icon: "fleet", title: "fleet.title", keys: "g f" },
  { href: "/table", icon: "table", title: "table.title", keys: "g t" },
  { href: "/policies", icon: "policy", title: "policy.title", keys: "g p" },
  { href: "/placements", icon: "group", title: "placement.title", keys: "g l" },
  { href: "/changes", icon: "changes", title: "change.title", keys: "g c" },
  { href: "/operations", icon: "operation", title: "operation.title", keys: "g o" },
  { href: "/join", icon: "join", title: "join.title", keys: "g j" },
]
