package cli

import (
	"debug/elf"
	"errors"
	"fmt"

	"orrery.dev/orrery/internal/lifecycle"
)

// agentFiles are the executables that become the agent of hosts, by architecture.
type agentFiles struct {
	given map[string]string
}

// findAgents looks which architectures the given executables are for.
func findAgents(paths []string) (*agentFiles, error) {
	a := &agentFiles{given: map[string]string{}}
	for _, path := range paths {
		arch, err := archOf(path)
		if err != nil {
			return nil, fmt.Errorf("--agent %s: %w", path, err)
		}
		a.given[arch] = path
	}
	return a, nil
}

// archOf reads the architecture of an executable for Linux.
func archOf(path string) (string, error) {
	file, err := elf.Open(path)
	if _, ok := errors.AsType[*elf.FormatError](err); ok {
		return "", errors.New("is not an executable for Linux; give an orrery that was built for it")
	}
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // only read

	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	default:
		return "", fmt.Errorf("is built for %s; want amd64 or arm64", file.Machine)
	}
}

// file returns the executable for an architecture.
func (a *agentFiles) file(arch string) (string, error) {
	if path := a.given[arch]; path != "" {
		return path, nil
	}
	path, err := lifecycle.AgentFile(arch)
	if err != nil {
		return "", fmt.Errorf("%w, or make one with %q and name it with --agent",
			err, "CGO_ENABLED=0 GOOS=linux GOARCH="+arch+" go build -o orrery-linux-"+arch+" ./cmd/orrery")
	}
	return path, nil
}
