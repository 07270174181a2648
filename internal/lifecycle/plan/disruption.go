package plan

import "slices"

// disruptions from the least to the most.
var disruptions = []Disruption{DisruptionNone, DisruptionReload, DisruptionRestart, DisruptionDrain, DisruptionData}

// Worse reports whether a disturbs more than b. Unset is none.
func Worse(a, b Disruption) bool {
	rank := func(d Disruption) int { return max(0, slices.Index(disruptions, d)) }
	return rank(a) > rank(b)
}
