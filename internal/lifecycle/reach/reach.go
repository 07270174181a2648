// Package reach checks whether the hosts of a cluster reach each other's ports. All hosts run Check
// at the same time. Each listens on its own ports and dials those of the others. An answer has the
// token of the request, so that another server on the port is detected. It has a payload in
// full-sized packets, because a path that loses these fails only at the first large answer of an
// API server.
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
	// Listen are the ports that other hosts dial.
	Listen []int `json:"listen,omitempty"`
	// Dial are host:port of other hosts.
	Dial []string `json:"dial,omitempty"`
	// Expect is the number of dials from other hosts, over all ports. The check ends as soon as all of
	// them have arrived and all own dials have succeeded. With zero, it listens for the whole window.
	Expect int `json:"expect,omitempty"`
	// Window is the maximum duration of the check. It must allow for hosts that begin later.
	Window time.Duration `json:"window"`
}

// Result lists the problems, in the order of the request. It is empty if there are none.
type Result struct {
	// Taken are ports on which the host cannot listen.
	Taken []Port `json:"taken,omitempty"`
	// Unreached are addresses without a correct answer.
	Unreached []Peer `json:"unreached,omitempty"`
}

// Port is a port on which the host cannot listen.
type Port struct {
	Port int `json:"port"`
	// Message is the reason, such as "address already in use".
	Message string `json:"message"`
}

// Peer is an address that was not reached.
type Peer struct {
	Address string  `json:"address"`
	Problem Problem `json:"problem"`
	Message string  `json:"message"`
}

// Problem is the kind of a problem with a peer.
type Problem string

// Values of Problem.
const (
	// ProblemRefused: nothing listens there, because the port is taken or the check did not run, or a
	// firewall rejects the connection.
	ProblemRefused Problem = "Refused"
	// ProblemTimeout: there is no answer. A firewall drops packets, or the host is down.
	ProblemTimeout Problem = "Timeout"
	// ProblemNoRoute: there is no route to the address, or no such name.
	ProblemNoRoute Problem = "NoRoute"
	// ProblemStranger: another server answers.
	ProblemStranger Problem = "Stranger"
	// ProblemLargeLost: a few bytes pass, but 64 KiB do not. The path has a smaller MTU than the
	// hosts' interfaces.
	ProblemLargeLost Problem = "LargeLost"
)

// Check listens and dials until everything has succeeded or the window ends. It returns an error
// for an invalid request, or if ctx ends.
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

// cause returns the innermost error of a network error, without the addresses.
func cause(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}
