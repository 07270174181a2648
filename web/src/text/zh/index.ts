import type { Texts } from "../text"
import change from "./change"
import cluster from "./cluster"
import common from "./common"
import fleet from "./fleet"
import join from "./join"
import layout from "./layout"
import object from "./object"
import operation from "./operation"
import own from "./own"
import palette from "./palette"
import placement from "./placement"
import policy from "./policy"
import table from "./table"
import why from "./why"

// Types see to it that each text of English is here.
const zh: { [F in keyof Texts]: { [K in keyof Texts[F]]: string } } = {
  common,
  table,
  own,
  palette,
  layout,
  object,
  fleet,
  placement,
  why,
  policy,
  cluster,
  join,
  operation,
  change,
}
export default zh
