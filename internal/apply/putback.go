package apply

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// putBacks counts the writes that put a copy back, and contests how often a copy became
// contested.
var (
	// putBacks counts, by cluster, the writes that put a copy back.
	putBacks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_apply_put_backs_total",
		Help: "Applies of a manifest that the cluster had before, because somebody changed or deleted the copy there since.",
	}, []string{"cluster"})
	// contests counts, by cluster, how often a copy became contested: it was put back again and again.
	contests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "orrery_apply_contests_total",
		Help: "Copies that became contested: they were put back again and again.",
	}, []string{"cluster"})
)

func init() { metrics.Registry.MustRegister(putBacks, contests) } //nolint:gochecknoinits // where controller-runtime's own metrics register

// Contest returns why the copy of a binding in a cluster is contested, as far as this process has
// seen; the zero value if the copy is not contested. The status reports it.
func (a *Applier) Contest(binding types.UID, cluster string) Contest {
	s, _ := a.results.get(binding, cluster)
	return s.contest
}

// uncontested returns the state s. If no write has put the copy back within PutBackMemory, it first
// resets the remembered writes and the contest, in s and in the results.
func (t *task) uncontested(s state, now time.Time) state {
	if s.acts.PutBacks == 0 || now.Sub(s.acts.PutBack) <= PutBackMemory {
		return s
	}
	t.update(func(s *state) { s.acts.PutBacks, s.row, s.contest = 0, nil, Contest{} })
	s.acts.PutBacks, s.row, s.contest = 0, nil, Contest{}
	return s
}

// prior is the state of a copy before an apply. putsBack is true if the apply puts the copy back;
// unread is true if the copy could not be read.
type prior struct {
	putsBack bool
	live     *unstructured.Unstructured // the copy before; nil: there was none, or it was not read
	unread   bool
}

// prior returns the state of the copy before an apply. It reads the copy only if the apply is with
// force and puts the copy back. An error is only logged, and sets unread.
func (t *task) prior(ctx context.Context, force bool) prior {
	s, _ := t.queue.applier.results.get(t.binding.UID, t.queue.name())
	b := prior{putsBack: putsBack(t.wanted, s.acts)}
	if !b.putsBack || !force {
		return b
	}
	live, err := t.queue.client.Get(ctx, t.wanted.Object)
	switch {
	case err == nil:
		b.live = live
	case !apierrors.IsNotFound(err):
		b.unread = true
		t.log(ctx).V(1).Info("cannot read what is about to be put back", "error", err.Error())
	}
	return b
}

// losses returns what a copy had lost before a manifest was applied: fields, the whole copy (a loss
// without a path) if there was none, or its ownership (hub) if another hub had applied it. It is
// nil if the copy could not be read.
func (t *task) losses(b prior, sent, applied *unstructured.Unstructured) []loss {
	switch {
	case b.unread:
		return nil
	case b.live == nil:
		return []loss{{}}
	case isOtherHubs(b.live, string(t.binding.UID), t.queue.applier.key()):
		return []loss{{hub: true}}
	default:
		return losses(sent, b.live, applied)
	}
}

// wrote records an apply, in the state and the metrics. If the apply put the copy back, it counts
// as such a write. After an apply of another manifest, the earlier writes count only for fields
// that the hub still owns. Then wrote decides whether the copy is contested.
func (t *task) wrote(b prior, sent, applied *unstructured.Unstructured) {
	now, cluster := t.queue.applier.now(), t.queue.name()
	var lost []loss
	if b.putsBack {
		lost = t.losses(b, sent, applied)
		putBacks.WithLabelValues(cluster).Inc()
	}
	began := false
	t.update(func(s *state) {
		row := stillCounting(s.row, now)
		if b.putsBack {
			if len(row) == 0 {
				s.acts.PutBacks = 0
			}
			row = append(row, putBack{now, lost})
			row = slices.Clone(row[max(0, len(row)-maxPutBacks):])
			s.acts.PutBacks, s.acts.PutBack = s.acts.PutBacks+1, now
		} else if row = afterEdit(row, ownSet(applied, sent.GetAPIVersion())); len(row) == 0 {
			s.acts.PutBacks = 0
		}
		was := s.contest
		s.row, s.contest = row, contest(t.wanted.Object, row, now)
		began = was == Contest{} && s.contest != Contest{}
	})
	if began {
		contests.WithLabelValues(cluster).Inc()
	}
}
