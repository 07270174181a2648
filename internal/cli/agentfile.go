package cli

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// agentFiles are the executables that become the agent of hosts, by architecture.
type agentFiles struct {
	given map[string]string
	self  string
}

// findAgents looks which architectures the given executables are for.
func findAgents(paths []string) (*agentFiles, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the running executable, which is the agent of hosts: %w", err)
	}
	a := &agentFiles{given: map[string]string{}, self: self}
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
	if runtime.GOOS == "linux" && runtime.GOARCH == arch {
		return a.self, nil
	}
	beside := filepath.Join(filepath.Dir(a.self), "orrery-linux-"+arch)
	if _, err := os.Stat(beside); err != nil {
		return "", fmt.Errorf("its architecture is %s, and there is no orrery for it at %s: put the release's file there, or make one with %q and name it with --agent",
			arch, beside, "CGO_ENABLED=0 GOOS=linux GOARCH="+arch+" go build -o orrery-linux-"+arch+" ./cmd/orrery")
	}
	return beside, nil
}
