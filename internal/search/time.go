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

// times are the parameters of a request about what was.
type times struct {
	at       time.Time // the moment whose state is asked for; zero: now
	compared time.Time // the moment with which now is compared; zero: nothing is
	ago      bool      // the moment was said as so long ago: each request says another
	history  bool      // of one object
	deleted  bool      // of many
	all      bool      // fields that are noise, too
}

// momentLayouts are the forms of a moment, besides how long ago it was.
var momentLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", time.DateOnly}

// moment reads a moment; ago: it was said as so long ago.
func (p *params) moment(to *time.Time, value string) error {
	at, ago, err := parseMoment(value)
	if err == nil {
		*to, p.ago = at, p.ago || ago
	}
	return err
}

// CheckMoment returns an error if a text is no moment of the past in a form that the parameters at
// and changedSince take.
func CheckMoment(value string) error {
	_, _, err := parseMoment(value)
	return err
}

// parseMoment reads a moment. ago is true if the text says how long ago it was.
func parseMoment(value string) (at time.Time, ago bool, err error) {
	text := strings.ReplaceAll(value, " ", "+") // what becomes of a plus in a URL
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

// mark begins the continue tokens of what was: all pages are of one moment, also of one that was said as so long ago.
const mark = "at-"

func marked(moment time.Time, token string) string {
	return fmt.Sprintf("%s%d.%s", mark, moment.UnixMilli(), token)
}

// moments is how many parameters ask for what was.
func (p *params) moments() (n int) {
	for _, one := range []bool{!p.at.IsZero(), !p.compared.IsZero(), p.history, p.deleted} {
		if one {
			n++
		}
	}
	return n
}

// checkTimes refuses what makes no sense together, and takes the moment out of a continue token.
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

// told says whether a request is answered with an ObjectHistory.
func (p *params) told() bool { return p.history || p.deleted || !p.compared.IsZero() }

// warnOfThen says in what an answer of a moment may differ from what was true then.
func warnOfThen(w http.ResponseWriter, moment time.Time) {
	text := fmt.Sprintf("as the hub knew it at %s: what it did not mirror then, or not yet, is missing", moment.Format(time.RFC3339))
	if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
		w.Header().Add("Warning", header)
	}
}

// noHistory is what a client is told of an error of the store that says that something is not kept; nil: it does not.
func noHistory(err error, at string) error {
	if old, ok := errors.AsType[*store.TooOldError](err); ok {
		return apierrors.NewResourceExpired(fmt.Sprintf("the history of %s is known from %s on: ask for a later moment", at, old.From.Format(time.RFC3339)))
	}
	if !errors.Is(err, store.ErrNoHistory) {
		return nil
	}
	return withoutHistory(fmt.Sprintf("no history is kept of %s: of Events and Leases there is none, nor of what orrery server was told to leave out", at))
}

// withoutHistory refuses what there is no history of, in a way that programs know.
func withoutHistory(message string) error {
	refused := apierrors.NewBadRequest(message)
	refused.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: fleetv1alpha1.CauseNoHistory, Message: message}}}
	return refused
}
