//go:build !race

package testenv

// RaceDetector says whether tests, and the orrery that BuildOrrery builds, run under Go's race detector.
const RaceDetector = false
