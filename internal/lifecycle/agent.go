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

// agent describes the executable of Orrery's agent for one architecture: its path on this machine,
// and its SHA-256 digest as sha256:HEX. The agent is the program that runs on the hosts.
type agent struct{ path, digest string }

// agents caches the agent executables that a run has used, by architecture such as amd64. run.agent
// fills the cache. It is safe for use by several goroutines.
type agents struct {
	mu   sync.Mutex
	read map[string]agent
}

// agent returns the agent executable for an architecture such as amd64, and its digest. The run
// reads and hashes the file once. After an error, the next call tries again.
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

// fileDigest returns the SHA-256 digest of the agent executable at path, as sha256:HEX.
func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	defer file.Close() //nolint:errcheck // a file that is only read
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("read the agent: %w", err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// bringAgent installs the agent of this Orrery version on a host that has no agent or another one.
// It runs before each request, because another agent may not understand the request. It does
// nothing if c.agent, the digest of the agent on the host, is already the right one. It takes
// c.brings.
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

// checkProtocol returns an error if protocol, that of the agent on the host, is newer than
// node.Protocol. A newer Orrery has then worked on the cluster, and this one could undo or skip
// steps that it does not know. An older protocol is no error. name is the host.
func checkProtocol(name string, protocol int) error {
	if protocol <= node.Protocol {
		return nil
	}
	return fmt.Errorf("host %s: its agent speaks protocol %d, and this orrery %d: a newer orrery works on this cluster; use that, or one as new",
		name, protocol, node.Protocol)
}

// receive is the shell script with which sendAgent installs the agent. It reads the executable from
// standard input. $1 is the path and $2 the expected SHA-256 digest in hex, without sha256:. If the
// content has another digest, the script installs nothing and fails.
const receive = `set -eu
umask 022
mkdir -p "$(dirname "$1")"
cat >"$1.incoming"
[ "$(sha256sum "$1.incoming" | cut -d' ' -f1)" = "$2" ] || { rm -f "$1.incoming"; echo "the agent arrived damaged: its digest is wrong" >&2; exit 1; }
chmod 0755 "$1.incoming"
mv -f "$1.incoming" "$1"
`

// sendAgent uploads the agent executable from this machine to the host, and sets c.agent to its
// digest. A damaged upload is an error. The caller holds c.brings.
func (c *connection) sendAgent(ctx context.Context, a agent) error {
	file, err := os.Open(a.path)
	if err != nil {
		return fmt.Errorf("read the agent: %w", err)
	}
	defer file.Close() //nolint:errcheck // a file that is only read
	digest := strings.TrimPrefix(a.digest, "sha256:")
	if err := c.run(ctx, []string{"sh", "-c", receive, "sh", node.AgentPath, digest}, file, nil); err != nil {
		return fmt.Errorf("bring the agent: %w", err)
	}
	c.agent = a.digest
	return nil
}
