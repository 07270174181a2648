package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SearchCounts has the numbers of objects that share values, such as a namespace or an image. It
// answers a list or a search with the parameter group.
type SearchCounts struct {
	metav1.TypeMeta `json:",inline"`

	// By are the names of the values by which the objects are grouped, as requested.
	By []string `json:"by"`
	// Total is the number of objects that were counted.
	Total int64 `json:"total"`
	// Groups are the counts, with the largest first. An object with several values, such as
	// images, is counted in the group of each value.
	Groups []SearchGroup `json:"groups"`
}

// SearchGroup is the number of objects that have the same values, in a SearchCounts.
type SearchGroup struct {
	// Values are in the order of By. An empty value means that the objects have none.
	Values  []string `json:"values"`
	Objects int64    `json:"objects"`
}

// SearchExplanation explains how the hub understood and executed a search. It answers a search with
// the parameter explain=true.
type SearchExplanation struct {
	metav1.TypeMeta `json:",inline"`

	// Query is the query of the request as it was understood. Filter is the filter expression of
	// the request; empty: none. Terms are the filter and the terms of the query.
	Query  string       `json:"query,omitempty"`
	Filter string       `json:"filter,omitempty"`
	Terms  []SearchTerm `json:"terms,omitempty"`
	// Kinds that were searched for the first page.
	Kinds []SearchedKind `json:"kinds"`
	// LeftOut are kinds that were not searched, with the reason.
	LeftOut []SearchedKind `json:"leftOut,omitempty"`
	// More is true if there is another page.
	More bool `json:"more,omitempty"`
	// Milliseconds is the duration of the first page.
	Milliseconds int64 `json:"milliseconds"`
}

// SearchTerm is one term of a query, with what it means.
type SearchTerm struct {
	Term  string `json:"term"`
	Means string `json:"means"`
	// How the term is evaluated: by an index, by the rows of objects without their bodies, or
	// by reading the objects.
	How string `json:"how"`
}

// SearchedKind is a kind in a SearchExplanation, with the number of objects that were read.
type SearchedKind struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	// Read is the number of objects read, Found the number of them in the answer.
	Read  int `json:"read"`
	Found int `json:"found"`
	// Why the kind was left out.
	Why string `json:"why,omitempty"`
}
