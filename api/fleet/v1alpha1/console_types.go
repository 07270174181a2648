package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConsoleLink is a request for a link that opens the console as the user who creates the
// ConsoleLink, with the groups of that user. It can only be created, by POST, and is not stored, so
// no other user can read it.
type ConsoleLink struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Status ConsoleLinkStatus `json:"status,omitzero"`
}

// ConsoleLinkStatus has the URL that a ConsoleLink requested, and when it expires.
type ConsoleLinkStatus struct {
	// URL to open in a browser. It works once; until then, everyone who has it can act as the
	// user.
	URL string `json:"url"`
	// Expires is when the URL stops working.
	Expires metav1.Time `json:"expires"`
}

// ConsoleHeader is a header of the requests that the console forwards to the hub for a logged-in
// user. A request with the header cannot create a ConsoleLink, because the link could outlast the
// session.
const ConsoleHeader = "Orrery-Console"

// ReasonNoConsole is the reason of the error (Status) if a ConsoleLink cannot be created because
// the hub serves no console. The message says why.
const ReasonNoConsole metav1.StatusReason = "NoConsole"
