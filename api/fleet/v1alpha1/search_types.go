package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SearchCounts says how many objects there are by what they have. It answers a list, or a search, with the parameter group.
type SearchCounts struct {
	metav1.TypeMeta `json:",inline"`

	// By is what was counted by, as it was asked.
	By []string `json:"by"`
	// Total is how many objects were counted.
	Total int64 `json:"total"`
	// Groups are the counts, the largest first. Of what an object may have several of, such as images, it is counted at each.
	Groups []SearchGroup `json:"groups"`
}

// SearchGroup is how many objects have the same values.
type SearchGroup struct {
	// Values are in the order of By; "": the objects have none.
	Values  []string `json:"values"`
	Objects int64    `json:"objects"`
}

// SearchExplanation says what was understood of a search, and what it costs. It answers a search with explain=true.
type SearchExplanation struct {
	metav1.TypeMeta `json:",inline"`

	// Query is what was asked, as it was understood.
	Query  string       `json:"query,omitempty"`
	Filter string       `json:"filter,omitempty"`
	Terms  []SearchTerm `json:"terms,omitempty"`
	// Kinds are those that were searched for the first page.
	Kinds []SearchedKind `json:"kinds"`
	// LeftOut are kinds that were not searched, and why.
	LeftOut []SearchedKind `json:"leftOut,omitempty"`
	// More is true if there is another page.
	More bool `json:"more,omitempty"`
	// Milliseconds are what the first page took.
	Milliseconds int64 `json:"milliseconds"`
}

// SearchTerm is one term of a query.
type SearchTerm struct {
	Term  string `json:"term"`
	Means string `json:"means"`
	// How it is looked for: an index, the rows of objects without their bodies, or objects that are read.
	How string `json:"how"`
}

// SearchedKind is a kind, and what was read of it.
type SearchedKind struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	// Read is how many objects were read, Found how many of them are in the answer.
	Read  int `json:"read"`
	Found int `json:"found"`
	// Why it was left out.
	Why string `json:"why,omitempty"`
}
