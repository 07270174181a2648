package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/template"
)

// past detects that the hub was restored from a backup, before anything is removed in members. It
// compares the hub with the results that earlier processes recorded. A result names a generation of
// a binding and a version of a template that the hub once had. The hub was restored if it now has
// an earlier generation of the binding. For a template whose kind has no generations, an earlier
// resourceVersion shows the same. past needs no answer of the members. But the last results before
// a crash may be missing in the records, and all records may be lost. Then only the copies in the
// members show a restore.
type past struct {
	applier *Applier

	comparing sync.Mutex // held by the worker that compares

	mu     sync.Mutex
	newest map[types.UID]recorded // by binding, without those that were compared
}

// comparePatience bounds how long one worker compares the recorded versions with the hub.
const comparePatience = 10 * time.Second

// recorded has the latest versions of a binding and of its templates that results name. Each
// version comes with its own cluster and time, because the results may come from several ones.
type recorded struct {
	generation latest[int64] // of the binding
	templates  []templateVersion
}

// templateVersion is the latest recorded version of a template of a binding: its generation, or
// its resourceVersion if its kind has no generations.
type templateVersion struct {
	uid types.UID
	latest[uint64]
}

// latest is the largest recorded number, with the cluster and the time of the result that names
// the number. The number is 0 if nothing is recorded.
type latest[N int64 | uint64] struct {
	number  N
	cluster string
	time    time.Time
}

// add replaces l by a number and its result, if the number is larger.
func (l *latest[N]) add(number N, r records.Result) {
	if number > l.number {
		l.number, l.cluster, l.time = number, r.Cluster, r.Time
	}
}

// of returns the latest recorded version of the template with this UID; zero if there is none.
func (r *recorded) of(template types.UID) latest[uint64] {
	for _, v := range r.templates {
		if v.uid == template {
			return v.latest
		}
	}
	return latest[uint64]{}
}

// add adds a result that an earlier process recorded. A result from before a confirmed restore is
// ignored: it proves nothing, and must not hide a later one.
func (p *past) add(r records.Result) {
	if !r.Time.After(p.applier.restore.confirmedSince()) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == nil {
		p.newest = map[types.UID]recorded{}
	}
	one := p.newest[r.Binding]
	one.generation.add(r.Generation, r)
	uid, number := template.Number(r.Template)
	i := slices.IndexFunc(one.templates, func(v templateVersion) bool { return v.uid == uid })
	if i < 0 {
		i, one.templates = len(one.templates), append(one.templates, templateVersion{uid: uid})
	}
	one.templates[i].add(number, r)
	p.newest[r.Binding] = one
}

// open returns, by binding, the recorded versions that were not compared yet. All results are added
// before the first comparison.
func (p *past) open() map[types.UID]recorded {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.newest)
}

// drop removes the entry of a binding, so that it is not compared again.
func (p *past) drop(binding types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.newest, binding)
}

// compared reports whether the hub has all versions that were recorded, as far as is known. Until
// then restoreCheck allows no removal. If the hub lacks a version, compared records that the hub
// seems to be restored, and returns false. Entries whose template is not known yet stay for the
// next call, and do not make the result false. It returns false at once while another worker
// compares. It reads from the hub for at most comparePatience.
func (p *past) compared(ctx context.Context) (bool, error) {
	if p.mu.Lock(); len(p.newest) == 0 {
		p.mu.Unlock()
		return true, nil
	}
	p.mu.Unlock()
	if !p.comparing.TryLock() {
		return false, nil
	}
	defer p.comparing.Unlock()
	until := time.Now().Add(comparePatience)
	a := p.applier
	confirmed := a.restore.confirmedSince()
	for uid, one := range p.open() {
		b, known := a.bindings.ByUID(uid)
		one = one.after(confirmed)
		if !known || one.empty() || a.restore.Suspected() {
			p.drop(uid)
			continue
		}
		source, state := a.template(b)
		switch unversioned := b.Spec.Resource.Generation == 0; {
		case one.generation.number > b.Generation,
			unversioned && source != nil && one.of(source.GetUID()).number > version(source.GetResourceVersion()):
			if restored, err := p.verify(ctx, until, b, one); err != nil || restored {
				return false, err
			}
		case unversioned && state == presence.Unknown:
			continue
		}
		p.drop(uid)
	}
	return true, nil
}

// after returns a copy with only the versions that were recorded after t.
func (r *recorded) after(t time.Time) recorded {
	left := recorded{generation: r.generation}
	if !r.generation.time.After(t) {
		left.generation = latest[int64]{}
	}
	left.templates = slices.DeleteFunc(slices.Clone(r.templates), func(v templateVersion) bool { return !v.time.After(t) })
	return left
}

// empty reports whether nothing is recorded.
func (r *recorded) empty() bool { return r.generation.number == 0 && len(r.templates) == 0 }

// verify reads the binding and the template from the hub and compares them with what was
// recorded for the binding. If the hub is older, it records that the hub seems to be restored.
// It returns false if only the caches were older, or if the binding or the template was
// deleted. It reads until the time until; the record has its own time.
func (p *past) verify(ctx context.Context, until time.Time, b *workv1alpha2.ResourceBinding, one recorded) (restored bool, err error) {
	r := p.applier.restore
	judged := r.Epoch()
	reading, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	live := binding.Object(b.DeepCopy())
	err = r.reader.Get(reading, client.ObjectKeyFromObject(live), live)
	if apierrors.IsNotFound(err) || err == nil && live.GetUID() != b.UID {
		return false, nil // the binding was deleted meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("get binding: %w", err)
	}
	if was := one.generation; was.number > live.GetGeneration() {
		return p.suspect(ctx, judged, fmt.Sprintf("binding %s has the generation %d, and %d was applied in cluster %s at %s",
			binding.Name(b), live.GetGeneration(), was.number, was.cluster, was.time.UTC().Format(time.RFC3339)))
	}
	template := &metav1.PartialObjectMetadata{}
	template.SetGroupVersionKind(binding.Kind(b))
	err = r.reader.Get(reading, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.Resource.Name}, template)
	if apierrors.IsNotFound(err) {
		return false, nil // the template was deleted meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("get template: %w", err)
	}
	was := one.of(template.UID)
	if template.Generation != 0 || version(template.ResourceVersion) >= was.number {
		return false, nil
	}
	return p.suspect(ctx, judged, fmt.Sprintf("binding %s has the resourceVersion of the template %s, and %d was applied in cluster %s at %s",
		binding.Name(b), template.ResourceVersion, was.number, was.cluster, was.time.UTC().Format(time.RFC3339)))
}

// suspect records that the hub seems to be restored, and returns true. judged is the epoch in which
// the comparison began. It returns false if the restore was confirmed meanwhile, or another process
// has just recorded the suspicion.
func (p *past) suspect(ctx context.Context, judged int64, reason string) (bool, error) {
	r := p.applier.restore
	if err := r.suspect(ctx, reason, judged, judged); err != nil {
		return false, err
	}
	return r.Suspected(), nil
}
