package cli

import (
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
)

// findAgents returns the paths of --agent by the architecture that each program is built for, amd64
// or arm64. The program is the agent that Orrery runs on the hosts of a cluster. Of several for one
// architecture, the last is returned. A file that is not that program is an error.
func findAgents(paths []string) (map[string]string, error) {
	given := map[string]string{}
	for _, path := range paths {
		arch, err := archOf(path)
		if err != nil {
			return nil, fmt.Errorf("--agent %s: %w", path, err)
		}
		given[arch] = path
	}
	return given, nil
}

// agentPackage is the Go package of the agent's program. archOf looks for that name, since every Go
// executable contains the name of its main package.
const agentPackage = "orrery.dev/orrery/cmd/orrery-agent"

// archOf returns the architecture, amd64 or arm64, that the agent's program at a path is built for.
// A file that is not an orrery-agent for Linux is an error.
func archOf(path string) (string, error) {
	file, err := elf.Open(path)
	if _, ok := errors.AsType[*elf.FormatError](err); ok {
		return "", errors.New("is not an executable for Linux; give an orrery-agent that was built for it")
	}
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // only read

	if info, err := buildinfo.ReadFile(path); err != nil || info.Path != agentPackage {
		return "", errors.New("is not the agent of hosts; give an orrery-agent, such as the release's orrery-agent-linux-arm64")
	}
	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	default:
		return "", fmt.Errorf("is built for %s; want amd64 or arm64", file.Machine)
	}
}
