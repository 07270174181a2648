package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"orrery.dev/orrery/internal/lifecycle/node"
)

// agent is the file of the orrery agent for one architecture, with its SHA-256 digest.
type agent struct{ path, digest string }

// agents caches the agent files that a run has used, by architecture.
type agents struct {
	mu   sync.Mutex
	read map[string]agent
}

// agent returns the agent for an architecture. Its file is read and hashed once in a run.
func (r *run) agent(arch string) (agent, error) {
	r.agents.mu.Lock()
	defer r.agents.mu.Unlock()
	if a, ok := r.agents.read[arch]; ok {
		return a, nil
	}
	path, err := r.Env.Agent(arch)
	if err != nil {
		return agent{}, err
	}
	digest, err := fileDigest(path)
	if err != nil {
		return agent{}, err
	}
	if r.agents.read == nil {
		r.agents.read = map[string]agent{}
	}
	r.agents.read[arch] = agent{path, digest}
	return r.agents.read[arch], nil
}

func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// bringAgent installs this version's agent on a host that has another one, or none. It runs before
// each request, because another version of the agent may not understand the request.
func (r *run) bringAgent(ctx context.Context, c *connection) error {
	a, err := r.agent(c.arch)
	if err != nil {
		return fmt.Errorf("host %s: %w", c.name, err)
	}
	c.brings.Lock()
	defer c.brings.Unlock()
	if c.agent == a.digest {
		return nil
	}
	return c.sendAgent(ctx, a)
}

// speaks returns an error if the agent on the host has a newer protocol than this orrery, which
// could undo or skip steps that it does not know.
func speaks(name string, protocol int) error {
	if protocol <= node.Protocol {
		return nil
	}
	return fmt.Errorf("host %s: its agent speaks protocol %d, and this orrery %d: a newer orrery works on this cluster; use that, or one as new",
		name, protocol, node.Protocol)
}

// receive is the script that installs the agent. It reads the file from standard input. $1 is the
// path and $2 the digest.
const receive = `set -eu
umask 022
mkdir -p "$(dirname "$1")"
cat >"$1.incoming"
[ "$(sha256sum "$1.incoming" | cut -d' ' -f1)" = "$2" ] || { rm -f "$1.incoming"; echo "the agent arrived damaged: its digest is wrong" >&2; exit 1; }
chmod 0755 "$1.incoming"
mv -f "$1.incoming" "$1"
`

// sendAgent uploads the agent from this machine to the host. The caller holds brings.
func (c *connection) sendAgent(ctx context.Context, a agent) error {
	file, err := os.Open(a.path)
	if err != nil {
		return fmt.Errorf("read the agent: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	digest := strings.TrimPrefix(a.digest, "sha256:")
	if err := c.run(ctx, []string{"sh", "-c", receive, "sh", node.AgentPath, digest}, file, nil); err != nil {
		return fmt.Errorf("bring the agent: %w", err)
	}
	c.agent = a.digest
	return nil
}
