package balancer

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
)

// read returns the addresses of the API servers in the backends file, as host:port in the order of
// the file, each once. It ignores empty lines and text after a #. A line that is not host:port is
// an error. An empty file is no error.
func read(path string) ([]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read backends: %w", err)
	}
	var all []string
	lines := bufio.NewScanner(bytes.NewReader(content))
	for n := 1; lines.Scan(); n++ {
		address, _, _ := strings.Cut(lines.Text(), "#")
		if address = strings.TrimSpace(address); address == "" || slices.Contains(all, address) {
			continue
		}
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("read backends: line %d of %s is %q, want host:port", n, path, address)
		}
		all = append(all, address)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read backends: %w", err)
	}
	return all, nil
}
