package node

import (
	"time"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Protocol is the version of these messages, of the steps, and of the host's record. It increases
// with each change that an agent or engine of another version would misunderstand or skip.
const Protocol = 1

// Request is what `orrery node apply` reads from standard input, as one line of JSON. The content
// of Streams follows without separators.
type Request struct {
	// Protocol of the request. An agent with another protocol refuses the request.
	Protocol int `json:"protocol"`
	// Cluster is the name, and ClusterID the identity, of the cluster for the host. A host that
	// belongs to another cluster refuses the request.
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterID"`
	Version   string `json:"version,omitempty"`
	// Lease that the run holds or takes. It is granted if it is free, expired, or held by the same
	// operation, and its epoch is not lower than the last one seen. It then lasts until Expires. A
	// request with nothing else to do takes or extends the lease, also while another agent of the run
	// works on the host.
	Lease plan.Lease `json:"lease"`
	// Ended are the RunIDs of runs that the sender knows to have ended. Their leases are free.
	Ended []string `json:"ended,omitempty"`
	// Release releases the lease at the end, and removes content that no applied step uses.
	Release bool `json:"release,omitempty"`
	// Streams are blobs that follow the request.
	Streams []Stream `json:"streams,omitempty"`
	// Fetches are blobs from other hosts. They are fetched while earlier steps run.
	Fetches []Fetch `json:"fetches,omitempty"`
	// Remove are the IDs of applied steps to undo before Steps, the latest first. IDs that were not
	// applied are ignored.
	Remove []string `json:"remove,omitempty"`
	// Steps to do, in this order.
	Steps []plan.Step `json:"steps,omitempty"`
	// Again are the IDs of steps that are done even if the host matches them. A unit is restarted.
	Again []string `json:"again,omitempty"`
	// RemoveAll undoes every applied step, the latest first, and then removes the agent and its files.
	RemoveAll bool `json:"removeAll,omitempty"`
}

// Stream is a blob that follows the request. Size is in bytes.
type Stream struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Fetch is a blob that other hosts serve.
type Fetch struct {
	Digest string `json:"digest"`
	// Sources are host:port of the servers, in the order of attempts.
	Sources []string `json:"sources"`
	// Token for the servers.
	Token string `json:"token"`
}

// Event is a line of JSON on the agent's standard output. The first event has an empty Step and
// means that the agent holds the lease. Two events follow for each step. State failed with an empty
// Step means that the request as a whole was refused or could not be finished.
type Event struct {
	Step      string                      `json:"step,omitempty"`
	InputHash string                      `json:"inputHash,omitempty"`
	State     lifecyclev1alpha1.StepState `json:"state"`
	Time      time.Time                   `json:"time"`
	// Message is why a step failed, with the end of a system program's output.
	Message string `json:"message,omitempty"`
	// Output is the end of the output of a user's script. It goes only to the host's log, because
	// others may read the record of a run.
	Output string `json:"output,omitempty"`
	// Missing are needed digests that could not be fetched. The engine then streams them.
	Missing []string `json:"missing,omitempty"`
	// LeaseHeld is the lease of another run that stopped this request.
	LeaseHeld *plan.Lease `json:"leaseHeld,omitempty"`
}

// ServeRequest is what `orrery node serve` reads from standard input, as one line of JSON. The
// agent serves until standard input ends.
type ServeRequest struct {
	// Token that clients must send.
	Token string `json:"token"`
	// Address of the host on which to listen, where other hosts reach it.
	Address string `json:"address,omitempty"`
}

// Serving is what `orrery node serve` writes, as one line of JSON, when it has begun to serve.
type Serving struct {
	Port int `json:"port"`
}
