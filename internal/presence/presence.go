// Package presence has the type with which all packages report whether something exists: an
// object in a cluster, a kind that a cluster serves, a template on the hub.
package presence

// Presence says whether something exists: Present, Absent, or Unknown if that could not be
// determined.
type Presence int

// Values of Presence. Unknown is the zero value. It is not Absent: nothing may be deleted
// because its presence is unknown.
const (
	Unknown Presence = iota
	Absent
	Present
)

// String implements fmt.Stringer: it returns Unknown, Absent or Present.
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
