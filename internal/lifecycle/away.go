package lifecycle

import (
	"errors"
	"slices"
	"strings"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// away is a host that was not reached, and why.
type away struct {
	reach intent.Reach
	err   error
}

// AwayError means that hosts which were not reached stop a run or a plan.
type AwayError struct{ err error }

// Error joins the errors of the hosts.
func (e *AwayError) Error() string { return e.err.Error() }

// Unwrap returns the errors of the hosts.
func (e *AwayError) Unwrap() error { return e.err }

// reachOf returns how far a command on a connected host came. The user may be refused only then: by
// the login shell or by sudo.
func reachOf(err error) intent.Reach {
	var (
		gone  *host.Unreachable
		login *host.LoginRefused
		sudo  *host.SudoRefused
	)
	switch {
	case errors.As(err, &gone):
		return intent.Unreachable
	case errors.As(err, &login), errors.As(err, &sudo):
		return intent.Refused
	}
	return intent.Reached
}

// leftHosts are hosts that a run leaves as they are.
type leftHosts []leftHost

type leftHost struct {
	name      string
	err       error
	treatment intent.Treatment
}

// fails reports whether the run must fail in the end because of these hosts.
func (l leftHosts) fails() bool {
	return slices.ContainsFunc(l, func(h leftHost) bool { return h.treatment == intent.TreatLeave })
}

// without returns the hosts that are not among names.
func (l leftHosts) without(names []string) leftHosts {
	return slices.DeleteFunc(slices.Clone(l), func(h leftHost) bool { return slices.Contains(names, h.name) })
}

// String joins the errors of the hosts.
func (l leftHosts) String() string {
	texts := make([]string, 0, len(l))
	for _, h := range l {
		texts = append(texts, h.err.Error())
	}
	return strings.Join(texts, "; ")
}

// decide applies the reach table to the hosts that were not reached. It returns the hosts that the
// action leaves as they are, and an AwayError if one of them stops it. part returns the part of a
// host.
func (r *run) decide(action lifecyclev1alpha1.Action, part func(name string) intent.Part) (left leftHosts, stop error) {
	var stops []error
	for _, name := range sortedKeys(r.away) {
		h := r.away[name]
		treatment := intent.Treat(action, part(name), h.reach)
		switch treatment {
		case intent.TreatLeave, intent.TreatSkip, intent.TreatReport:
			left = append(left, leftHost{name, h.err, treatment})
			continue
		case intent.TreatForget:
			if r.op.Spec.Forgets() {
				left = append(left, leftHost{name, h.err, treatment})
				continue
			}
		case intent.TreatWork, intent.TreatStop:
		}
		stops = append(stops, h.err)
	}
	if len(stops) > 0 {
		stop = &AwayError{errors.Join(stops...)}
	}
	return left, stop
}

// partOf returns the part of a host in an action that removes none.
func (r *run) partOf(name string) intent.Part {
	if r.state.IsPart(name) {
		return intent.Staying
	}
	return intent.Coming
}

// awayError joins the errors of the hosts that were not reached. It is nil if all were reached.
func (r *run) awayError() error {
	errs := make([]error, 0, len(r.away))
	for _, name := range sortedKeys(r.away) {
		errs = append(errs, r.away[name].err)
	}
	return errors.Join(errs...)
}

// ofHost returns the message of an error for a finding, which names the host itself.
func ofHost(name string, err error) string {
	return strings.ReplaceAll(err.Error(), "host "+name+": ", "")
}

// reachFindings returns a finding for each host that was not reached, or whose facts could not be
// read.
func (r *run) reachFindings() []plan.Finding {
	find := func(name, check string, err error, fix string) plan.Finding {
		return plan.Finding{Host: name, Check: check, Severity: plan.SeverityError, Message: ofHost(name, err), Fix: fix}
	}
	const unread = "what is on the host is unknown until it can be looked at"
	var findings []plan.Finding
	for _, name := range sortedKeys(r.failed) {
		findings = append(findings, find(name, "login", r.failed[name], unread))
	}
	for _, name := range sortedKeys(r.away) {
		if a := r.away[name]; a.reach == intent.Refused {
			findings = append(findings, find(name, "login", a.err, unread))
		}
	}
	for _, name := range sortedKeys(r.away) {
		if a := r.away[name]; a.reach == intent.Unreachable {
			findings = append(findings, find(name, "reachable", a.err, "what is on the host is unknown until it answers"))
		}
	}
	return findings
}

// refusesLogin reports whether a host can be logged in to with another login only.
func (r *run) refusesLogin() bool {
	for _, a := range r.away {
		if a.reach == intent.Refused {
			return true
		}
	}
	return false
}

// wayBack returns how a run goes on that left hosts as they are.
func (r *run) wayBack() string {
	way := `resume with "orrery operation resume ` + r.op.Name + `" when they are back`
	if r.Local && r.refusesLogin() {
		way += ", or run the command again with -f and a file that has their present logins"
	}
	return way
}

// newLogin returns, as the beginning of a sentence, how a host that refuses its login can be
// removed. It is empty if no host does.
func (r *run) newLogin() string {
	if r.Local && r.refusesLogin() {
		return "name a file with the present logins with -f, or, "
	}
	return ""
}
