// Package reach finds out whether the hosts of a cluster reach each other's ports. All hosts run a Check at the same
// time: each listens on its own ports and dials those of the others.
package reach

import (
	"context"
	"time"
)

// Request is what one host checks.
type Request struct {
	// Token is the same on all hosts; it tells an answer of ours from that of somebody else.
	Token string `json:"token"`
	// Listen are the ports that others dial.
	Listen []int `json:"listen,omitempty"`
	// Dial are the host:port of others.
	Dial []string `json:"dial,omitempty"`
	// Expect is how many dials of others will come, over all ports. With it the check ends as soon as all have come and all
	// dials have succeeded; zero waits for the whole window.
	Expect int `json:"expect,omitempty"`
	// Window is how long others may take to begin.
	Window time.Duration `json:"window"`
}

// Result is what went wrong.
type Result struct {
	// Taken are the ports that something else listens on.
	Taken []Port `json:"taken,omitempty"`
	// Unreached are the addresses that do not answer as they should.
	Unreached []Peer `json:"unreached,omitempty"`
}

// Port that cannot be listened on.
type Port struct {
	Port   int    `json:"port"`
	Reason string `json:"reason"`
}

// Peer that was not reached.
type Peer struct {
	Address string  `json:"address"`
	Problem Problem `json:"problem"`
	Message string  `json:"message"`
}

// Problem is the kind of what went wrong with a peer.
type Problem string

// Problems.
const (
	ProblemRefused   Problem = "Refused"   // the host answers that nothing listens, or a firewall rejects
	ProblemTimeout   Problem = "Timeout"   // nothing answers: a firewall drops, or there is no route
	ProblemStranger  Problem = "Stranger"  // something else answers
	ProblemLargeLost Problem = "LargeLost" // a few bytes pass and 64 KiB do not: the path has a smaller MTU
	ProblemNoRoute   Problem = "NoRoute"   // the network is unreachable, or the name is unknown
)

// Check listens and dials until all is well or the window ends.
func Check(ctx context.Context, r Request) (Result, error) { panic("not yet") }
