package apply

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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
)

// past is what the records of earlier processes show of the hub. A result names the generation of a
// binding, and the version of a template, that the hub had committed: a hub with an earlier one was
// restored from a backup, whatever the members can say of it. Records may be lost, and end a moment
// before their process: without them the copies in the members show it.
type past struct {
	applier *Applier

	mu     sync.Mutex
	newest map[types.UID]recorded // by binding; those that were compared are gone
}

// recorded is the latest that is recorded of a binding.
type recorded struct {
	generation int64 // of the binding
	template   types.UID
	version    uint64 // the resourceVersion of a template of a kind without generations; 0: it has one
	cluster    string // that a result of this generation or version is about
	time       time.Time
}

// add takes in a result that was recorded.
func (p *past) add(r records.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest == nil {
		p.newest = map[types.UID]recorded{}
	}
	one := p.newest[r.Binding]
	uid, content, _ := strings.Cut(r.Template, "/")
	content, _, _ = strings.Cut(content, "/")
	if v := version(content); one.template != types.UID(uid) || v > one.version {
		one.template, one.version, one.cluster, one.time = types.UID(uid), v, r.Cluster, r.Time
	}
	if r.Generation > one.generation {
		one.generation, one.cluster, one.time = r.Generation, r.Cluster, r.Time
	}
	p.newest[r.Binding] = one
}

// compared reports whether the hub has all that was recorded, as far as is known. What cannot be
// compared yet is compared the next time.
func (p *past) compared(ctx context.Context) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.applier
	confirmed := a.restore.confirmedSince()
	for uid, one := range p.newest {
		b, known := a.bindings.ByUID(uid)
		if !known || !one.time.After(confirmed) || a.restore.Suspected() {
			delete(p.newest, uid)
			continue
		}
		source, state := a.template(b)
		switch {
		case one.generation > b.Generation, b.Spec.Resource.Generation == 0 && source != nil && source.GetUID() == one.template && one.version > version(source.GetResourceVersion()):
			if restored, err := p.verify(ctx, b, one); err != nil || restored {
				return false, err
			}
		case b.Spec.Resource.Generation == 0 && state == presence.Unknown:
			continue
		}
		delete(p.newest, uid)
	}
	return true, nil
}

// verify finds out from the hub itself whether it has what was recorded of a binding. It returns
// false while only the caches are older.
func (p *past) verify(ctx context.Context, b *workv1alpha2.ResourceBinding, one recorded) (restored bool, err error) {
	r := p.applier.restore
	judged := r.Epoch()
	live := binding.Object(b.DeepCopy())
	err = r.reader.Get(ctx, client.ObjectKeyFromObject(live), live)
	if apierrors.IsNotFound(err) || err == nil && live.GetUID() != b.UID {
		return false, nil // it went meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("get binding: %w", err)
	}
	what, is, was := "generation", strconv.FormatInt(live.GetGeneration(), 10), strconv.FormatInt(one.generation, 10)
	if live.GetGeneration() >= one.generation {
		template := &metav1.PartialObjectMetadata{}
		template.SetGroupVersionKind(binding.Kind(b))
		err = r.reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.Resource.Name}, template)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("get template: %w", err)
		}
		if err != nil || template.UID != one.template || template.Generation != 0 || version(template.ResourceVersion) >= one.version {
			return false, nil
		}
		what, is, was = "resourceVersion of the template", template.ResourceVersion, strconv.FormatUint(one.version, 10)
	}
	reason := fmt.Sprintf("binding %s has the %s %s, and %s was applied in cluster %s at %s", binding.Name(b), what, is, was, one.cluster, one.time.UTC().Format(time.RFC3339))
	if err := r.suspect(ctx, reason, judged, judged); err != nil {
		return false, err
	}
	return r.Suspected(), nil
}
