// Package reach finds out whether the hosts of a cluster reach each other's ports. All hosts run a Check at the same
// time: each listens on its own ports and dials those of the others. An answer has the token of the request, so that
// somebody else who listens there is not mistaken for the host; and it has a payload that needs full-sized packets, since a
// path that loses those looks well until the first large answer of an API server.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Request is what one host checks.
type Request struct {
	// Token is the same on all hosts.
	Token string `json:"token"`
	// Listen are the ports that others dial.
	Listen []int `json:"listen,omitempty"`
	// Dial are the host:port of others.
	Dial []string `json:"dial,omitempty"`
	// Expect is how many dials of others come when all is well, over all ports. With it, the check ends as soon as all have
	// come and all of its own have succeeded. Zero listens for the whole window.
	Expect int `json:"expect,omitempty"`
	// Window is how long the check takes at most. It must cover that hosts begin at different times.
	Window time.Duration `json:"window"`
}

// Result is what is not as it should be; both are in the order of the request.
type Result struct {
	// Taken are the ports that cannot be listened on.
	Taken []Port `json:"taken,omitempty"`
	// Unreached are the addresses that do not answer as they should.
	Unreached []Peer `json:"unreached,omitempty"`
}

// Port that cannot be listened on.
type Port struct {
	Port int `json:"port"`
	// Message says why, as "address already in use".
	Message string `json:"message"`
}

// Peer that was not reached.
type Peer struct {
	Address string  `json:"address"`
	Problem Problem `json:"problem"`
	Message string  `json:"message"`
}

// Problem is the kind of what is wrong with a peer.
type Problem string

// Problems.
const (
	// ProblemRefused: nothing listens there, because the port is taken or the check did not run, or a firewall rejects.
	ProblemRefused Problem = "Refused"
	// ProblemTimeout: nothing answers. A firewall drops, or the host is down.
	ProblemTimeout Problem = "Timeout"
	// ProblemNoRoute: there is no way to the address, or no such name.
	ProblemNoRoute Problem = "NoRoute"
	// ProblemStranger: something else answers.
	ProblemStranger Problem = "Stranger"
	// ProblemLargeLost: a few bytes pass and 64 KiB do not. Something on the path has a smaller MTU than the hosts' links.
	ProblemLargeLost Problem = "LargeLost"
)

// Check listens and dials until all is well or the window ends.
func Check(ctx context.Context, r Request) (Result, error) {
	if err := r.validate(); err != nil {
		return Result{}, fmt.Errorf("check ports: %w", err)
	}
	window, end := context.WithTimeout(ctx, r.Window)
	defer end()

	var result Result
	var answering sync.WaitGroup
	answers := newCounter(r.Expect)
	for _, port := range r.Listen {
		listener, err := new(net.ListenConfig).Listen(window, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if err != nil {
			result.Taken = append(result.Taken, Port{Port: port, Message: cause(err)})
			continue
		}
		answering.Go(func() { answer(window, listener, r.Token, answers) })
	}

	problems := make([]*Peer, len(r.Dial))
	var dialling sync.WaitGroup
	for i, address := range r.Dial {
		dialling.Go(func() { problems[i] = dial(window, address, r.Token) })
	}
	dialling.Wait()
	if len(r.Listen) > len(result.Taken) {
		select {
		case <-answers.enough:
		case <-window.Done():
		}
	}
	end()
	answering.Wait()
	if ctx.Err() != nil {
		return Result{}, fmt.Errorf("check ports: %w", context.Cause(ctx))
	}
	for _, p := range problems {
		if p != nil {
			result.Unreached = append(result.Unreached, *p)
		}
	}
	return result, nil
}

func (r Request) validate() error {
	var errs []error
	if r.Token == "" || strings.ContainsAny(r.Token, "\r\n") {
		errs = append(errs, errors.New("token: must be one line"))
	}
	if r.Window <= 0 {
		errs = append(errs, fmt.Errorf("window: %v is not positive", r.Window))
	}
	for i, port := range r.Listen {
		if port < 1 || port > 65535 || slices.Contains(r.Listen[:i], port) {
			errs = append(errs, fmt.Errorf("listen[%d]: %d is not a port, or is there twice", i, port))
		}
	}
	for i, address := range r.Dial {
		if host, port, err := net.SplitHostPort(address); err != nil || host == "" || port == "" {
			errs = append(errs, fmt.Errorf("dial[%d]: %q is not host:port", i, address))
		}
	}
	return errors.Join(errs...)
}

// cause of an error of the network, without the addresses that are known anyway.
func cause(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}
