package plan

// Architectures that hosts may have.
var Architectures = []string{"amd64", "arm64"}
