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

// times are the parameters of a request about the past.
type times struct {
	at       time.Time // the requested moment; zero: now
	compared time.Time // the moment with which the present is compared; zero: none
	// the moment was given as a duration before now, so it differs in each request
	ago     bool
	history bool // the history of one object
	deleted bool // the deleted objects
	all     bool // includes fields that change without meaning
}

// momentLayouts are the layouts of a moment. A moment can also be a duration before now.
var momentLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", time.DateOnly}

// moment parses a moment, and sets p.ago if it was given as a duration before now.
func (p *params) moment(to *time.Time, value string) error {
	at, ago, err := parseMoment(value)
	if err == nil {
		*to, p.ago = at, p.ago || ago
	}
	return err
}

// CheckMoment returns an error if a text is not a moment of the past in a form that the
// parameters at and changedSince take.
func CheckMoment(value string) error {
	_, _, err := parseMoment(value)
	return err
}

// parseMoment parses a moment. ago is true if the text is a duration before now.
func parseMoment(value string) (at time.Time, ago bool, err error) {
	text := strings.ReplaceAll(value, " ", "+") // in a URL, a plus is decoded as a blank
	for _, layout := range momentLayouts {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), false, past(t)
		}
	}
	text = strings.TrimLeft(text, "-+")
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			text = strconv.FormatUint(n*24, 10) + "h"
		}
	}
	before, err := time.ParseDuration(text)
	if err != nil || before < 0 {
		return time.Time{}, false, errors.New("must be a moment, such as 2026-11-20T10:00Z or 2026-11-20, or how long ago, such as -1h or -2d")
	}
	return time.Now().Add(-before).UTC(), true, nil
}

func past(t time.Time) error {
	if time.Now().Before(t) {
		return errors.New("is in the future")
	}
	return nil
}

// mark begins the continue tokens of lists of the past. All pages are of the same moment, also
// if the request gives it as a duration before now.
const mark = "at-"

func marked(moment time.Time, token string) string {
	return fmt.Sprintf("%s%d.%s", mark, moment.UnixMilli(), token)
}

// moments returns the number of parameters that ask for the past.
func (p *params) moments() (n int) {
	for _, one := range []bool{!p.at.IsZero(), !p.compared.IsZero(), p.history, p.deleted} {
		if one {
			n++
		}
	}
	return n
}

// checkTimes refuses parameters that contradict each other, and reads the moment from the
// continue token.
func (p *params) checkTimes(named bool) error {
	moments := p.moments()
	switch {
	case p.all && !p.history && p.compared.IsZero():
		return apierrors.NewBadRequest("parameter allFields: it is of history and changedSince")
	case p.history && (!p.labels.Empty() || len(p.fields) > 0):
		return apierrors.NewBadRequest("parameter history: it is of one object, whatever its labels and fields")
	case p.told() && (p.owner.uid != "" || p.owner.name != "" || p.owner.resource.Resource != "" || p.owner.steps != 0 || p.offset != 0 || p.ordered || p.noContinue || p.remaining != nil || p.onlyMetadata):
		return apierrors.NewBadRequest("parameters history, deleted and changedSince: what became of objects has an order of its own, and is not selected by owners, offset or counted")
	case (p.history || !p.compared.IsZero()) && (!p.since.IsZero() || !p.before.IsZero()):
		return apierrors.NewBadRequest("parameters since and before: they are of lists of objects; of what became of them they select only what is deleted")
	case p.history && (p.names != nil || p.namespaces != nil || p.contains != nil):
		return apierrors.NewBadRequest("parameter history: the path has the one name")
	case !p.at.IsZero() && p.remaining != nil && *p.remaining:
		return apierrors.NewBadRequest("parameter withRemainingCount: objects are counted as they are now")
	case moments > 0 && p.group != nil:
		return apierrors.NewBadRequest("parameter group: objects are counted as they are now; list them with at")
	case p.told() && !p.asked.empty():
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

// told reports whether the answer is an ObjectHistory.
func (p *params) told() bool { return p.history || p.deleted || !p.compared.IsZero() }

// warnOfThen adds a warning about differences between the answer and the true state at a moment.
func warnOfThen(w http.ResponseWriter, moment time.Time) {
	text := fmt.Sprintf("as the hub knew it at %s: what it did not mirror then, or not yet, is missing", moment.Format(time.RFC3339))
	if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
		w.Header().Add("Warning", header)
	}
}

// noHistory returns the error for the client if the store has no history for the request; nil
// for other errors and for nil.
func noHistory(err error, at string) error {
	if old, ok := errors.AsType[*store.TooOldError](err); ok {
		return apierrors.NewResourceExpired(fmt.Sprintf("the history of %s is known from %s on: ask for a later moment", at, old.From.Format(time.RFC3339)))
	}
	if !errors.Is(err, store.ErrNoHistory) {
		return nil
	}
	return withoutHistory(fmt.Sprintf("no history is kept of %s: of Events and Leases there is none, nor of what orrery server was told to leave out", at))
}

// withoutHistory returns the error that there is no history, with a cause that programs
// recognize.
func withoutHistory(message string) error {
	refused := apierrors.NewBadRequest(message)
	refused.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: fleetv1alpha1.CauseNoHistory, Message: message}}}
	return refused
}
