// Package reach checks whether the hosts of a cluster reach each other's ports, before components
// are installed. All hosts run Check at the same time. Each host listens on its own ports and dials
// those of the others. An answer must have the token of the request, so that another server on the
// port is detected. It also has a payload in full-sized packets. A path that loses such packets
// would otherwise fail only at the first large answer of an API server.
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

// Request is what one host checks in Check: on which ports it listens and which addresses it dials.
type Request struct {
	// Token is the same on all hosts of one check. Answers with another token do not count.
	Token string `json:"token"`
	// Listen are the ports that other hosts dial.
	Listen []int `json:"listen,omitempty"`
	// Dial are host:port of other hosts.
	Dial []string `json:"dial,omitempty"`
	// Expect is the number of dials from other hosts, over all ports. The check ends as soon as it has
	// answered that many and all own dials have succeeded. With zero, a check with ports listens for
	// the whole window.
	Expect int `json:"expect,omitempty"`
	// Window is the maximum duration of the check. It must allow for hosts that begin later.
	Window time.Duration `json:"window"`
}

// Result has the problems that Check has found, in the order of the request. It is empty if there
// are none.
type Result struct {
	// Taken are ports on which the host cannot listen.
	Taken []Port `json:"taken,omitempty"`
	// Unreached are the addresses that did not answer correctly.
	Unreached []Peer `json:"unreached,omitempty"`
}

// Port is a port on which the host cannot listen.
type Port struct {
	Port int `json:"port"`
	// Message is the reason, such as "address already in use".
	Message string `json:"message"`
}

// Peer is an address of another host that was not reached, with the kind of the problem and a
// message.
type Peer struct {
	Address string  `json:"address"`
	Problem Problem `json:"problem"`
	Message string  `json:"message"`
}

// Problem says why an address of another host was not reached.
type Problem string

// Values of Problem.
const (
	// ProblemRefused: nothing listens there, because the port is taken or the check did not run, or a
	// firewall rejects the connection.
	ProblemRefused Problem = "Refused"
	// ProblemTimeout: a connection attempt got no answer. A firewall drops packets, or the host is
	// down.
	ProblemTimeout Problem = "Timeout"
	// ProblemNoRoute: there is no route to the address, or its host name does not exist.
	ProblemNoRoute Problem = "NoRoute"
	// ProblemStranger: a connection is accepted, but the answer is not that of this check. Another
	// program listens on the port, or a check with another token. The answer may also be missing.
	ProblemStranger Problem = "Stranger"
	// ProblemLargeLost: a few bytes pass, but 64 KiB do not. The path has a smaller MTU than the
	// hosts' interfaces.
	ProblemLargeLost Problem = "LargeLost"
)

// Check listens on the ports and dials the addresses of r, until all dials have succeeded and the
// expected dials of other hosts were answered. It ends at the latest when the window of r is over.
// Problems are in the Result, and no error. Check returns an error for an invalid request, or if
// ctx ends. When it returns, it listens no more.
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

// validate returns the joined errors in a request, or nil if it is valid.
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

// cause returns the text of the innermost error in err. For a network error, that is the reason
// without the addresses.
func cause(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}
