package failover

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"orrery.dev/orrery/internal/neutral"
)

// ConfigMapName is the name of the ConfigMap, in the namespace clusterv1alpha1.SecretNamespace,
// with the State of failover. The server creates it at its first start.
const ConfigMapName = "failover"

// Keys of the ConfigMap.
const (
	keyPaused    = "paused"          // true or false
	keyBy        = "by"              // the user who paused or resumed last
	keyWhy       = "why"             // the reason that the user gave
	keyAt        = "at"              // when
	keyCountFrom = "taintsCountFrom" // State.CountFrom
)

// Longest texts of users in a State, in bytes. Conditions of bindings repeat them.
const (
	longestBy  = 256
	longestWhy = 1024
)

// State is what the hub stores about failover, in the ConfigMap with the name ConfigMapName. It
// outlives the process.
type State struct {
	// Known is false until the ConfigMap was read or created. Nothing is evicted meanwhile. Data does
	// not have it.
	Known bool
	// Paused is true while a user has paused failover: nothing is evicted.
	Paused bool
	// By is the user who paused or resumed last, and Why the reason that the user gave; "": unknown.
	By, Why string
	// At is the time of the last pause or resume; zero: there was none.
	At time.Time
	// CountFrom is the time of the first start with failover. Taints that were added before it evict
	// nothing until a user resumes failover. Zero: all taints count.
	CountFrom time.Time
}

// ParseState parses the data of the ConfigMap. Known is true in the result. If there is an error,
// it names each key with an invalid value, and the result is paused. Long texts are cut. Unknown
// keys are ignored.
func ParseState(data map[string]string) (State, error) {
	s := State{Known: true, By: neutral.Cut(data[keyBy], longestBy), Why: neutral.Cut(data[keyWhy], longestWhy)}
	var errs []error
	switch data[keyPaused] {
	case "true", "false":
		s.Paused = data[keyPaused] == "true"
	default: // also if the key is missing
		errs = append(errs, fmt.Errorf("%s: %.40q: want true or false", keyPaused, data[keyPaused]))
	}
	for _, field := range []struct {
		key string
		to  *time.Time
	}{{keyAt, &s.At}, {keyCountFrom, &s.CountFrom}} {
		if data[field.key] == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, data[field.key])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %.40q: want a time such as 2027-02-03T04:05:06Z, or nothing", field.key, data[field.key]))
			continue
		}
		*field.to = at.UTC()
	}
	if len(errs) > 0 {
		s.Paused = true
	}
	return s, errors.Join(errs...)
}

// Data returns the data of the ConfigMap with the state. It has all keys. Times have seconds.
func (s State) Data() map[string]string {
	text := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	return map[string]string{
		keyPaused: strconv.FormatBool(s.Paused), keyBy: s.By, keyWhy: s.Why, keyAt: text(s.At), keyCountFrom: text(s.CountFrom),
	}
}

// pause returns the message of HoldPaused: who paused failover, why, and how to end the pause.
func (s State) pause() string {
	text := "failover is paused"
	if s.By != "" {
		text += " by " + neutral.Line(s.By)
	}
	if s.Why != "" {
		text += fmt.Sprintf(", because %q", s.Why)
	}
	return text + "; orrery failover resume ends the pause"
}
