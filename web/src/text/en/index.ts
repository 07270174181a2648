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

// One file for each folder of screens: the key "table.empty" is empty in table.ts.
export default { common, table, own, palette, layout, object, fleet, placement, why, policy, cluster, join, operation, change }
