package node

import (
	"time"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Protocol is the version of the messages in this file, of the steps, and of the records on a host.
// It increases with each change that an agent or engine of another version would misunderstand or
// skip.
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
	// Version of Kubernetes that the steps install. It is recorded on the host after all steps have
	// succeeded; "" keeps the recorded version.
	Version string `json:"version,omitempty"`
	// Lease is the lease that the run of the engine holds or takes. It is granted if the lease on the
	// host is free, has expired, or is held by the same run. Also, its epoch must be higher than the
	// last one that the host has seen, or be the same and belong to the same process.
	//
	// The lease then lasts until Expires. A request with nothing else to do takes or extends the
	// lease, also while another agent of the run works on the host.
	Lease plan.Lease `json:"lease"`
	// Ended are the RunIDs of runs that the sender knows to have ended. The host treats their leases
	// as free.
	Ended []string `json:"ended,omitempty"`
	// Release releases the lease after the steps have succeeded, and removes content that no applied
	// step uses.
	Release bool `json:"release,omitempty"`
	// Streams are blobs whose content follows the request, in this order. A blob is a file or archive
	// for the steps.
	Streams []Stream `json:"streams,omitempty"`
	// Fetches are blobs that the agent gets from other hosts, while earlier steps run.
	Fetches []Fetch `json:"fetches,omitempty"`
	// Remove are the IDs of applied steps to undo before Steps, the latest first. IDs that were not
	// applied are ignored.
	Remove []string `json:"remove,omitempty"`
	// Steps to do, in this order.
	Steps []plan.Step `json:"steps,omitempty"`
	// Again are the IDs of steps that are done even if the host matches them. A unit step then
	// restarts its unit.
	Again []string `json:"again,omitempty"`
	// RemoveAll undoes every applied step, the latest first, and then removes the agent and its files.
	RemoveAll bool `json:"removeAll,omitempty"`
}

// Stream is a blob whose content follows the request. Digest is sha256:HEX, Size is in bytes.
type Stream struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Fetch is a blob that other hosts serve with `orrery node serve`. Digest is sha256:HEX.
type Fetch struct {
	Digest string `json:"digest"`
	// Sources are host:port of the servers, in the order of attempts.
	Sources []string `json:"sources"`
	// Token for the servers.
	Token string `json:"token"`
}

// Event is a line of JSON that `orrery node apply` writes to standard output. The first event has
// an empty Step. It means that the agent holds the lease, or that a host without records needs no
// change. Then each step has two events: State Running, and its result. State Failed with an empty
// Step means that the request as a whole was refused or could not be finished.
type Event struct {
	Step      string                      `json:"step,omitempty"`
	InputHash string                      `json:"inputHash,omitempty"`
	State     lifecyclev1alpha1.StepState `json:"state"`
	Time      time.Time                   `json:"time"`
	// Message is why a step or the request failed, with the end of a system program's output. For a
	// step that succeeded it names what could not be restored or removed; "" if there is nothing.
	Message string `json:"message,omitempty"`
	// Output is the end of the output of a user's script. It goes only to the host's log, because
	// others may read the record of a run.
	Output string `json:"output,omitempty"`
	// Missing are the digests of content that the host needs and does not have. The engine then sends
	// them as Streams in another request.
	Missing []string `json:"missing,omitempty"`
	// LeaseHeld is the lease of another run on the host, if the request was refused or stopped because
	// of that lease; nil for other failures.
	LeaseHeld *plan.Lease `json:"leaseHeld,omitempty"`
}

// ServeRequest is what `orrery node serve` reads from standard input, as one line of JSON. The
// agent serves until standard input ends.
type ServeRequest struct {
	// Token that clients must send.
	Token string `json:"token"`
	// Address of the host on which to listen, where other hosts reach it. It is ignored if the
	// command line names an address.
	Address string `json:"address,omitempty"`
}

// Serving is what `orrery node serve` writes to standard output, as one line of JSON, as soon as it
// listens. Port is the TCP port.
type Serving struct {
	Port int `json:"port"`
}
