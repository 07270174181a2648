package plan

import "slices"

// disruptions has all values in ascending order.
var disruptions = []Disruption{DisruptionNone, DisruptionReload, DisruptionRestart, DisruptionDrain, DisruptionData}

// Worse reports whether a disturbs more than b. An empty value counts as DisruptionNone.
func Worse(a, b Disruption) bool {
	rank := func(d Disruption) int { return max(0, slices.Index(disruptions, d)) }
	return rank(a) > rank(b)
}
