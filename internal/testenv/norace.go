//go:build !race

package testenv

// RaceDetector is true if Go's race detector is enabled for tests, and for the orrery that
// BuildOrrery builds.
const RaceDetector = false
