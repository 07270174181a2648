package plan

import "slices"

// disruptions has all values of Disruption, from the least to the worst.
var disruptions = []Disruption{DisruptionNone, DisruptionReload, DisruptionRestart, DisruptionDrain, DisruptionData}

// Worse reports whether a disturbs more than b. Empty and unknown values count as DisruptionNone.
// The result is false for equal values.
func Worse(a, b Disruption) bool {
	rank := func(d Disruption) int { return max(0, slices.Index(disruptions, d)) }
	return rank(a) > rank(b)
}
