// Package presence is the one answer to "is it there?" that all rooms share: an object in a
// cluster, a kind that a cluster serves, a template on the hub.
package presence

// Presence says what is known of a thing.
type Presence int

// The values of Presence. Unknown is the zero value: what is not known is not absent, and
// nothing may be deleted because of it.
const (
	Unknown Presence = iota
	Absent
	Present
)

// String implements fmt.Stringer.
func (p Presence) String() string {
	switch p {
	case Absent:
		return "Absent"
	case Present:
		return "Present"
	case Unknown:
	}
	return "Unknown"
}
