package live

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// order is a message from a browser.
type order struct {
	Type   string `json:"type"`
	ID     int    `json:"id"`
	Path   string `json:"path"`
	Query  string `json:"query"`
	Offset int    `json:"offset"`
	Limit  int    `json:"limit"`
}

// whole is the complete content of a window.
type whole struct {
	Type     string       `json:"type"`
	ID       int          `json:"id"`
	Offset   int          `json:"offset"`
	Total    int64        `json:"total"`
	Exact    bool         `json:"exact"`
	Columns  []column     `json:"columns"`
	Rows     []rowMessage `json:"rows"`
	Warnings []string     `json:"warnings,omitempty"`
}

type column struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format,omitempty"`
	Description string `json:"description,omitempty"`
	Priority    int32  `json:"priority,omitempty"`
}

type rowMessage struct {
	Key        int64             `json:"key"`
	Cells      []json.RawMessage `json:"cells"`
	Cluster    string            `json:"cluster"`
	Namespace  string            `json:"namespace,omitempty"`
	Name       string            `json:"name"`
	UID        types.UID         `json:"uid"`
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Created    string            `json:"created,omitempty"`
	Deleted    bool              `json:"deleted,omitempty"`
}

// delta is the change of a window.
type delta struct {
	Type  string                            `json:"type"`
	ID    int                               `json:"id"`
	Total int64                             `json:"total"`
	Exact bool                              `json:"exact"`
	Order []int64                           `json:"order,omitzero"` // keys; nil: unchanged
	Rows  []rowMessage                      `json:"rows,omitempty"`
	Cells map[int64]map[int]json.RawMessage `json:"cells,omitempty"` // by key and column
}

// refusal is the reason why a window has no content.
type refusal struct {
	Type   string         `json:"type"`
	ID     int            `json:"id"`
	Status *metav1.Status `json:"status"`
}

// fleet is how current the data of each cluster is.
type fleet struct {
	Type     string           `json:"type"`
	Clusters []clusterMessage `json:"clusters"`
}

// cluster is the state of a cluster with its name.
type cluster struct {
	Name string
	state
}

type clusterMessage struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Since string `json:"since,omitempty"`
	Lag   int64  `json:"lag"` // seconds, at the time of sending
}

func fleetOf(clusters []cluster, now time.Time) fleet {
	out := fleet{Type: "fleet", Clusters: make([]clusterMessage, 0, len(clusters))}
	for _, c := range clusters {
		one := clusterMessage{Name: c.Name, State: c.state.state}
		if !c.since.IsZero() {
			one.Since, one.Lag = c.since.UTC().Format(time.RFC3339), max(int64(now.Sub(c.since)/time.Second), 0)
		}
		out.Clusters = append(out.Clusters, one)
	}
	return out
}

// beat shows a page that the connection lives: pages do not see pings.
type beat struct {
	Type string `json:"type"`
}

// end is the last message.
type end struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}
