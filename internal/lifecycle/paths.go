package lifecycle

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/reach"
)

// pathWindow is how long hosts try to reach each other in checkPaths. All hosts begin within one
// round trip of each other.
const pathWindow = 8 * time.Second

// checkPaths lets new hosts try the TCP connections that their components will make to each other,
// before any component is installed. A blocking firewall is thus reported here, and not later as an
// etcd without quorum. Connections from and to hosts that already run components are not tried. It
// returns one error with all failed connections and all ports that are in use. It returns another
// error if the check cannot run on a host.
func (r *run) checkPaths(ctx context.Context, work []hostWork) error {
	fresh := map[string]*connection{}
	for _, w := range work {
		if w.Fresh {
			fresh[w.Host.Name] = w.conn
		}
	}
	requests := map[string]*reach.Request{}
	token := rand.Text()
	for name := range fresh {
		requests[name] = &reach.Request{Token: token, Window: pathWindow}
	}
	names := map[string]string{}
	for _, p := range r.plan.Paths(r.spec) {
		from, to := requests[p.From], requests[p.To]
		if from == nil || to == nil {
			continue // one of the hosts already runs components
		}
		if !slices.Contains(to.Listen, p.Port) {
			to.Listen = append(to.Listen, p.Port)
		}
		to.Expect++
		address := r.plan.AddressOf(p.To, p.Port)
		names[address] = p.To
		from.Dial = append(from.Dial, address)
	}
	var mu sync.Mutex
	var problems []error
	group, gctx := errgroup.WithContext(ctx)
	for name, req := range requests {
		if len(req.Listen) == 0 && len(req.Dial) == 0 {
			continue
		}
		group.Go(func() error {
			content, err := json.Marshal(req)
			if err != nil {
				return fmt.Errorf("host %s: %w", name, err)
			}
			var out bytes.Buffer
			if err := fresh[name].run(gctx, []string{node.AgentPath, "node", "check"}, bytes.NewReader(content), &out); err != nil {
				return fmt.Errorf("check the ports of host %s: %w", name, err)
			}
			var result reach.Result
			if err := json.Unmarshal(out.Bytes(), &result); err != nil {
				return fmt.Errorf("check the ports of host %s: %w", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, p := range result.Taken {
				problems = append(problems, fmt.Errorf("host %s: port %d cannot be used: %s", name, p.Port, p.Message))
			}
			for _, p := range result.Unreached {
				problems = append(problems, fmt.Errorf("host %s cannot reach %s (host %s): %s", name, p.Address, names[p.Address], p.Message))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return fmt.Errorf("the hosts do not reach each other; open these ports in the firewalls between them, and on them: %w", errors.Join(problems...))
	}
	return nil
}
