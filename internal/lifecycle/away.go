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

// away describes a host that a run could not connect to or log in to. reach is intent.Unreachable
// or intent.Refused, and err is the error of the attempt.
type away struct {
	reach intent.Reach
	err   error
}

// AwayError means that a run or a plan ended before it changed any host. The reason is that it
// could not connect to some hosts or log in to them.
type AwayError struct{ err error }

// Error returns the errors of these hosts, one per line.
func (e *AwayError) Error() string { return e.err.Error() }

// Unwrap returns the joined errors of these hosts.
func (e *AwayError) Unwrap() error { return e.err }

// reachOf returns how far the connection to a host works, from the error of a command that was run
// on the host. It is intent.Unreachable if the connection was lost. It is intent.Refused if the
// login shell or sudo refused the user. For nil and any other error it is intent.Reached.
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

// leftHosts are the hosts that a run could not reach and leaves unchanged while it changes the
// other hosts. decide returns them.
type leftHosts []leftHost

// leftHost is a host that a run could not reach and leaves unchanged. err is the error of the
// attempt, and treatment says what the action does about such a host.
type leftHost struct {
	name      string
	err       error
	treatment intent.Treatment
}

// fails reports whether the run must end with an error because of these hosts. That is the case if
// a host has the treatment intent.TreatLeave: a later run must still change the host.
func (l leftHosts) fails() bool {
	return slices.ContainsFunc(l, func(h leftHost) bool { return h.treatment == intent.TreatLeave })
}

// without returns a copy of l without the hosts that are in names.
func (l leftHosts) without(names []string) leftHosts {
	return slices.DeleteFunc(slices.Clone(l), func(h leftHost) bool { return slices.Contains(names, h.name) })
}

// String returns the errors of the hosts, joined with semicolons, for messages.
func (l leftHosts) String() string {
	texts := make([]string, 0, len(l))
	for _, h := range l {
		texts = append(texts, h.err.Error())
	}
	return strings.Join(texts, "; ")
}

// decide looks up, in intent.ReachTable, what an action does with each host that could not be
// reached (r.away). left has the hosts that the action leaves unchanged. stop is an AwayError if
// any host stops the action, else nil. part returns whether a host joins, stays in or leaves the
// cluster with this action. Hosts whose facts could not be read are in r.failed, and decide does
// not see them.
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

// partOf returns the part of a host in an action that removes no host, for decide. It is
// intent.Staying if the host is in the applied spec, else intent.Coming.
func (r *run) partOf(name string) intent.Part {
	if r.state.IsPart(name) {
		return intent.Staying
	}
	return intent.Coming
}

// awayError joins the errors of the hosts that could not be reached (r.away), sorted by name. It is
// nil if there are none.
func (r *run) awayError() error {
	errs := make([]error, 0, len(r.away))
	for _, name := range sortedKeys(r.away) {
		errs = append(errs, r.away[name].err)
	}
	return errors.Join(errs...)
}

// ofHost returns the message of an error without the text "host NAME: ". It is for findings,
// which have the name of the host in a field.
func ofHost(name string, err error) string {
	return strings.ReplaceAll(err.Error(), "host "+name+": ", "")
}

// reachFindings returns a Finding with SeverityError for each host that could not be inspected.
// Hosts whose facts could not be read come first, then hosts that refused the login, then
// unreachable hosts.
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

// refusesLogin reports whether some host answered and did not let the run log in (intent.Refused),
// so that other credentials may help.
func (r *run) refusesLogin() bool {
	for _, a := range r.away {
		if a.reach == intent.Refused {
			return true
		}
	}
	return false
}

// wayBack returns the end of an error message about hosts that the run left unchanged, because it
// could not reach them or log in. The text says how the user resumes the run.
func (r *run) wayBack() string {
	way := `resume with "orrery operation resume ` + r.op.Name + `" when they are back`
	if r.Local && r.refusesLogin() {
		way += ", or run the command again with -f and a file that has their present logins"
	}
	return way
}

// newLogin returns the advice to name a file with the present logins, as the beginning of a
// sentence. It is "" if no host refuses its login. It is also "" on a hub (r.Local is false), where
// users cannot name files.
func (r *run) newLogin() string {
	if r.Local && r.refusesLogin() {
		return "name a file with the present logins with -f, or, "
	}
	return ""
}
