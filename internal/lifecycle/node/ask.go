package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"orrery.dev/orrery/internal/lifecycle/plan"
	supervised "orrery.dev/orrery/internal/process"
)

// askTimeout is the maximum duration of one attempt of a probe, which is one call of Linux.Probe.
const askTimeout = 3 * time.Second

// Probe implements System. It makes one attempt of a probe: a GET, a connection to a TCP address or
// Unix socket, or a command. It returns an error if the attempt fails or takes longer than
// askTimeout. A probe without URL, TCP and Exec is an error.
func (l *Linux) Probe(ctx context.Context, p plan.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	switch {
	case p.URL != "":
		return l.get(ctx, p)
	case p.TCP != "":
		network, address := "tcp", p.TCP
		if path, ok := strings.CutPrefix(p.TCP, "unix:"); ok {
			network, address = "unix", filepath.Join("/", l.Root, path)
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return err
		}
		return conn.Close()
	case len(p.Exec) > 0:
		_, err := l.Run(ctx, p.Exec, "")
		return err
	default:
		return errors.New("probe asks nothing: it has no url, tcp or exec")
	}
}

// get makes the GET of a probe. It returns an error if the answer is not 2xx or lacks the text
// p.Contains. If p.Contains is "", every 2xx answer is fine.
func (l *Linux) get(ctx context.Context, p plan.Probe) error {
	probe := supervised.HTTPProbe{URL: p.URL, CAFile: l.file(p.CAFile), CertFile: l.file(p.CertFile), KeyFile: l.file(p.KeyFile)}
	answer, err := probe.Get(ctx)
	if err != nil {
		return err
	}
	if !strings.Contains(answer, p.Contains) {
		return fmt.Errorf("%s answers without %q: %s", p.URL, p.Contains, answer)
	}
	return nil
}

// file returns a path of the host with Root before it. It returns "" for "".
func (l *Linux) file(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Join("/", l.Root, path)
}
