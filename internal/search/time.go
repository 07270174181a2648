package search

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/store"
)

// times are the parsed parameters of a request about the past: at, changedSince, history, deleted
// and allFields. A moment is a time that a request is about.
type times struct {
	at       time.Time // the requested moment; zero: now
	compared time.Time // changedSince: the moment with which the present is compared; zero: none
	// ago is true if at or compared was given as a duration before now. Then the same parameter
	// means another moment in each request.
	ago     bool
	history bool // the history of one object is requested
	deleted bool // the deleted objects are requested
	all     bool // allFields: also differences in fields that change without meaning
}

// momentLayouts are the layouts of a moment in a parameter. A moment can also be a duration before
// now.
var momentLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", time.DateOnly}

// moment parses the value of at or changedSince into *to. It sets p.ago if the value is a duration
// before now. After an error nothing is changed.
func (p *params) moment(to *time.Time, value string) error {
	at, ago, err := parseMoment(value)
	if err == nil {
		*to, p.ago = at, p.ago || ago
	}
	return err
}

// CheckMoment returns an error, as a text for users, unless the parameters at and changedSince
// accept the text: a moment of the past, or a duration before now. Commands check the text with it
// before they ask the hub.
func CheckMoment(value string) error {
	_, _, err := parseMoment(value)
	return err
}

// parseMoment parses a moment of the past, and returns it in UTC. ago is true if the text is a
// duration before now, such as 1h, -1h or -2d. A moment in the future, such as +1h, is an error.
func parseMoment(value string) (at time.Time, ago bool, err error) {
	text := strings.ReplaceAll(value, " ", "+") // in a URL, a plus is decoded as a blank
	for _, layout := range momentLayouts {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), false, past(t)
		}
	}
	text, future := strings.CutPrefix(strings.TrimPrefix(text, "-"), "+")
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			text = strconv.FormatUint(n*24, 10) + "h"
		}
	}
	before, err := time.ParseDuration(text)
	if err != nil || before < 0 {
		return time.Time{}, false, errors.New("must be a moment, such as 2026-11-20T10:00Z or 2026-11-20, or how long ago, such as -1h or -2d")
	}
	if future && before > 0 {
		return time.Time{}, false, errFuture
	}
	return time.Now().Add(-before).UTC(), true, nil
}

// errFuture refuses a moment in the future.
var errFuture = errors.New("is in the future: give a moment of the past, such as 2026-11-20T10:00Z, or how long ago, such as -1h")

// past returns errFuture if the time t is in the future.
func past(t time.Time) error {
	if time.Now().Before(t) {
		return errFuture
	}
	return nil
}

// mark is the prefix of continue tokens of lists about the past. Such a token has the moment, so
// that all pages are about the same one, also if the request has a duration before now.
const mark = "at-"

// marked returns the continue token of a list about the past: mark, the moment in milliseconds, and
// the given token.
func marked(moment time.Time, token string) string {
	return fmt.Sprintf("%s%d.%s", mark, moment.UnixMilli(), token)
}

// moments returns how many of the parameters at, changedSince, history and deleted the request has.
// 0 means that it is about the present; more than 1 is an error of checkTimes.
func (p *params) moments() (n int) {
	for _, one := range []bool{!p.at.IsZero(), !p.compared.IsZero(), p.history, p.deleted} {
		if one {
			n++
		}
	}
	return n
}

// checkTimes returns an error (400) for parameters about the past that contradict each other or the
// rest of the request. named means that the path names one object. If the request continues a list,
// checkTimes moves the moment from the token p.next to p.at or p.compared.
func (p *params) checkTimes(named bool) error {
	moments := p.moments()
	switch {
	case p.all && !p.history && p.compared.IsZero():
		return apierrors.NewBadRequest("parameter allFields: it is of history and changedSince")
	case p.history && (!p.labels.Empty() || len(p.fields) > 0):
		return apierrors.NewBadRequest("parameter history: it is of one object, whatever its labels and fields")
	case p.isHistory() && (p.owner.uid != "" || p.owner.name != "" || p.owner.resource.Resource != "" || p.owner.steps != 0 || p.offset != 0 || p.ordered || p.noContinue || p.remaining != nil || p.onlyMetadata):
		return apierrors.NewBadRequest("parameters history, deleted and changedSince: what became of objects has an order of its own, and is not selected by owners, offset or counted")
	case (p.history || !p.compared.IsZero()) && (!p.since.IsZero() || !p.before.IsZero()):
		return apierrors.NewBadRequest("parameters since and before: they are of lists of objects; of what became of them they select only what is deleted")
	case p.history && (p.names != nil || p.namespaces != nil || p.contains != nil):
		return apierrors.NewBadRequest("parameter history: the path has the one name")
	case !p.at.IsZero() && p.remaining != nil && *p.remaining:
		return apierrors.NewBadRequest("parameter withRemainingCount: objects are counted as they are now")
	case moments > 0 && p.group != nil:
		return apierrors.NewBadRequest("parameter group: objects are counted as they are now; list them with at")
	case p.isHistory() && !p.asked.empty():
		return apierrors.NewBadRequest("parameters q and filter: they are of lists of objects, as they are or were, and not of what became of them")
	case moments > 1:
		return apierrors.NewBadRequest("parameters at, changedSince, history and deleted: one of them at a time")
	case moments == 0:
		if strings.HasPrefix(p.next, mark) {
			return apierrors.NewBadRequest("parameter continue: it is of another moment, which must be asked for again with at or changedSince")
		}
		return nil
	case p.watch:
		return apierrors.NewBadRequest("what was does not change: it is listed, not watched")
	case p.version != "" && p.version != "0":
		return apierrors.NewBadRequest("parameter resourceVersion: what was has none")
	case p.history && !named:
		return apierrors.NewBadRequest("parameter history: it is of one object, by its name")
	case named && (p.deleted || !p.compared.IsZero()):
		return apierrors.NewBadRequest("parameters deleted and changedSince are for lists: ask for the one object with names")
	case p.next == "" || p.history || p.deleted:
		return nil
	}
	moment := &p.at
	if p.at.IsZero() {
		moment = &p.compared
	}
	marked, next, _ := strings.Cut(strings.TrimPrefix(p.next, mark), ".")
	ms, err := strconv.ParseInt(marked, 10, 64)
	began := time.UnixMilli(ms).UTC()
	if err != nil || !strings.HasPrefix(p.next, mark) || !p.ago && !began.Equal(moment.Truncate(time.Millisecond)) {
		return apierrors.NewBadRequest("parameter continue: it is not of a list of this moment")
	}
	*moment, p.next = began, next
	return nil
}

// isHistory reports whether the answer is an ObjectHistory, which has changes, and not objects.
func (p *params) isHistory() bool { return p.history || p.deleted || !p.compared.IsZero() }

// warnOfThen adds a warning to the header of an answer about a moment: objects that the hub did not
// mirror then are missing.
func warnOfThen(w http.ResponseWriter, moment time.Time) {
	text := fmt.Sprintf("as the hub knew it at %s: what it did not mirror then, or not yet, is missing", moment.Format(time.RFC3339))
	if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
		w.Header().Add("Warning", header)
	}
}

// noHistory returns the error for the client if the store has no history of a type (400), or none
// that is old enough (410). err is the error of the store; for any other error and for nil the
// result is nil. at is the name of the type.
func noHistory(err error, at string) error {
	if old, ok := errors.AsType[*store.TooOldError](err); ok {
		return apierrors.NewResourceExpired(fmt.Sprintf("the history of %s is known from %s on: ask for a later moment", at, old.From.Format(time.RFC3339)))
	}
	if !errors.Is(err, store.ErrNoHistory) {
		return nil
	}
	return withoutHistory(fmt.Sprintf("no history is kept of %s: of Events and Leases there is none, nor of what orrery server was told to leave out", at))
}

// withoutHistory returns the error (400) that there is no history for the request. Programs
// recognize it by its cause, CauseNoHistory.
func withoutHistory(message string) error {
	refused := apierrors.NewBadRequest(message)
	refused.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: fleetv1alpha1.CauseNoHistory, Message: message}}}
	return refused
}
