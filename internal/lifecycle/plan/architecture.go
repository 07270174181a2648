package plan

// Architectures lists the CPU architectures that hosts may have, in the spelling of Facts.Arch:
// amd64 and arm64.
var Architectures = []string{"amd64", "arm64"}
