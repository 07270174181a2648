package node

import (
	"time"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Protocol is the number of what is said here, and of what steps and the record of a host mean. It is raised with each change
// that an agent, or an engine, of another number would take for something else, or leave out.
const Protocol = 1

// Request is what `orrery node apply` reads from its standard input, as one line of JSON. The content of Streams follows,
// one after the other without separators.
type Request struct {
	// Protocol that the request speaks. An agent that speaks another refuses it, and one of the same knows each field.
	Protocol int `json:"protocol"`
	// Cluster is the name, and ClusterID the identity, of the cluster that the host is to belong to. A host
	// that belongs to another is refused.
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Version   string `json:"version,omitempty"`
	// Lease that the run holds or takes. It is taken if it is free, expired or held by the same operation, and its epoch is
	// not lower than the last seen one; it is extended to Expires.
	Lease plan.Lease `json:"lease"`
	// Ended are the RunIDs of runs that have ended, as whoever asks knows: a lease that one of them left is free.
	Ended []string `json:"ended,omitempty"`
	// Release gives the lease up once everything is done, and drops the content that no applied step uses.
	Release bool `json:"release,omitempty"`
	// Streams are blobs that follow the request.
	Streams []Stream `json:"streams,omitempty"`
	// Fetches are blobs that other hosts have. They are fetched while the steps before the first that needs one are done.
	Fetches []Fetch `json:"fetches,omitempty"`
	// Remove are the IDs of applied steps to be undone, latest first, before Steps are done. What was not applied needs no
	// undoing.
	Remove []string `json:"remove,omitempty"`
	// Steps to be done in this order.
	Steps []plan.Step `json:"steps,omitempty"`
	// RemoveAll undoes every applied step, latest first, and then removes all that the agent keeps, and the agent.
	RemoveAll bool `json:"removeAll,omitempty"`
}

// Stream is a blob that follows the request.
type Stream struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Fetch is a blob that other hosts serve.
type Fetch struct {
	Digest string `json:"digest"`
	// Sources are host:port of the servers, tried in this order.
	Sources []string `json:"sources"`
	// Token that the servers ask for.
	Token string `json:"token"`
}

// Event is a line of JSON that the agent writes to its standard output: first one with Step empty when the lease is held,
// then two for each step. Failed with Step empty means that the request as a whole was refused, or could not be ended.
type Event struct {
	Step      string                      `json:"step,omitempty"`
	InputHash string                      `json:"inputHash,omitempty"`
	State     lifecyclev1alpha1.StepState `json:"state"`
	Time      time.Time                   `json:"time"`
	// Message says why a step failed, with the tail of what a program of the system's printed.
	Message string `json:"message,omitempty"`
	// Output is the tail of what a script of the user's printed. It is for the host's log alone: who may read of a run need not
	// be who may read what a script says.
	Output string `json:"output,omitempty"`
	// Missing are digests that were needed and could not be fetched; the controlling side streams them.
	Missing []string `json:"missing,omitempty"`
	// LeaseHeld is the lease of another run, because of which nothing was done, or nothing more.
	LeaseHeld *plan.Lease `json:"leaseHeld,omitempty"`
}

// ServeRequest is what `orrery node serve` reads from its standard input, as one line of JSON. It serves until that input
// ends.
type ServeRequest struct {
	// Token that whoever fetches must know.
	Token string `json:"token"`
	// Address of the host that the others reach it by. Content is served there only.
	Address string `json:"address,omitempty"`
}

// Serving is what `orrery node serve` writes, as one line of JSON, once it serves.
type Serving struct {
	Port int `json:"port"`
}
