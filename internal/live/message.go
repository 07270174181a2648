package live

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// order is a message from a browser. Type is open, move or close. open shows the rows of the list
// at Path from Offset on, at most Limit, as the window with the ID, which the browser chose. move
// changes Offset and Limit of that window. close has only the ID.
type order struct {
	Type   string `json:"type"`
	ID     int    `json:"id"`
	Path   string `json:"path"`
	Query  string `json:"query"`
	Offset int    `json:"offset"`
	Limit  int    `json:"limit"`
}

// whole is a message to the browser, with Type window: all rows and columns of the window with the
// ID. Offset is the position of the first row in the list. Total is the number of rows of the list.
// If Exact is false, the list may have more rows than Total.
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

// column describes a column of a table to the browser. Priority is 0 for columns that are always
// shown, as in tables of Kubernetes.
type column struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Format      string `json:"format,omitempty"`
	Description string `json:"description,omitempty"`
	Priority    int32  `json:"priority,omitempty"`
}

// rowMessage is a row in a message to the browser, with its object. Key is a number that identifies
// the row within its window, also in later messages. Created is in RFC 3339. Deleted is true while
// the object is being deleted.
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

// delta is a message to the browser, with Type delta: the changes of the window with the ID since
// the last message about the window. Rows are the rows that are new, or whose object changed its
// type, creation time or deletion. Cells are the changed cells of the rows that the browser has.
type delta struct {
	Type  string                            `json:"type"`
	ID    int                               `json:"id"`
	Total int64                             `json:"total"`
	Exact bool                              `json:"exact"`
	Order []int64                           `json:"order,omitzero"` // keys in order; nil: as before
	Rows  []rowMessage                      `json:"rows,omitempty"`
	Cells map[int64]map[int]json.RawMessage `json:"cells,omitempty"` // by row key and column index
}

// refusal is a message to the browser, with Type error: the list of the window with the ID could
// not be read, or the window was not opened or moved. Status is the error that a GET would return.
type refusal struct {
	Type   string         `json:"type"`
	ID     int            `json:"id"`
	Status *metav1.Status `json:"status"`
}

// fleet is a message to the browser, with Type fleet: how current the data of each cluster is. It
// has the clusters that the user may know.
type fleet struct {
	Type     string           `json:"type"`
	Clusters []clusterMessage `json:"clusters"`
}

// cluster is the name and the state of a cluster. fleetOf turns it into a clusterMessage.
type cluster struct {
	Name string
	state
}

// clusterMessage is the state of a cluster for the browser. Since is when its data was last
// current, in RFC 3339; empty if the data is current or never was.
type clusterMessage struct {
	Name  string `json:"name"`
	State string `json:"state"`
	Since string `json:"since,omitempty"`
	Lag   int64  `json:"lag"` // seconds from Since to the time of sending; 0 without Since
}

// fleetOf returns the message with the states of clusters. now is the time of sending, from which
// Lag is computed.
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

// beat is a message to the browser, with Type beat, at intervals: it shows the page that the
// connection works. The script of a page cannot see the pings of a WebSocket.
type beat struct {
	Type string `json:"type"`
}

// end is the last message to the browser, with Type end. The session ended or the hub stops, and
// the socket closes. Reason says why, for the user.
type end struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}
