package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConsoleLink opens the console as whoever creates it, with the groups that they have. It is created, and nothing else: nobody else gets to see it.
type ConsoleLink struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Status ConsoleLinkStatus `json:"status,omitzero"`
}

// ConsoleLinkStatus is the link.
type ConsoleLinkStatus struct {
	// URL to open in a browser, once. Whoever has it is the user until then.
	URL string `json:"url"`
	// Expires is until when.
	Expires metav1.Time `json:"expires"`
}

// ConsoleHeader is on requests that the console passes on to the hub for a session. A session makes no ConsoleLink: it would outlast itself.
const ConsoleHeader = "Orrery-Console"

// ReasonNoConsole is the reason of the Status of a ConsoleLink that is not made because there is no console to open, and why is in its message.
const ReasonNoConsole metav1.StatusReason = "NoConsole"
