//go:build !race

package testenv

// RaceDetector is true if the tests, and the orrery that BuildOrrery builds, have Go's race
// detector.
const RaceDetector = false
