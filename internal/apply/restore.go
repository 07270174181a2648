package apply

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
)

// The ConfigMap that says whether the hub was restored from a backup. A person confirms it by
// setting state to Confirmed (orrery server confirm-restore).
const (
	RestoreConfigMap = "hub-restore"

	restoreState, restoreEpoch, restoreSince, restoreReason = "state", "epoch", "since", "reason"

	RestoreSuspected = "Suspected"
	RestoreConfirmed = "Confirmed"
)

// restore knows whether the hub was restored from a backup. While that is suspected nothing is
// deleted or rolled back in members: what the hub does not know of may be all that is left of it.
type restore struct {
	hub      client.Client
	reader   client.Reader // not cached
	key      func() mark.Key
	log      logr.Logger
	turned   func() // called when something may be done that was not, or the other way round
	recorded func(reason string)

	mu        sync.Mutex
	suspected bool
	epoch     int64     // how often a restore was confirmed, or is about to be
	since     time.Time // when what was confirmed last began to be suspected; zero: nothing was
}

// confirmedSince is the time until which records may be of what the hub lost, as was confirmed;
// zero: nothing was confirmed.
func (r *restore) confirmedSince() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suspected || r.since.IsZero() {
		return time.Time{}
	}
	return r.since.Add(time.Second) // it is written in seconds
}

// Suspected is true while the hub seems to be restored from a backup and nobody confirmed that.
func (r *restore) Suspected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suspected
}

// Epoch counts the confirmed restores.
func (r *restore) Epoch() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suspected {
		return r.epoch - 1
	}
	return r.epoch
}

// watch follows the ConfigMap.
func (r *restore) watch(ctx context.Context, informers cache.Informers) (toolscache.InformerSynced, error) {
	convert := func(o any) *corev1.ConfigMap {
		if c, ok := o.(*corev1.ConfigMap); ok && c.Namespace == clusterv1alpha1.SecretNamespace && c.Name == RestoreConfigMap {
			return c
		}
		return nil
	}
	return binding.Watch(ctx, informers, &corev1.ConfigMap{}, convert, func(before, after *corev1.ConfigMap) {
		if before != nil || after != nil {
			r.set(after)
		}
	})
}

// set takes in what the ConfigMap says; nil: there is none.
func (r *restore) set(c *corev1.ConfigMap) {
	suspected, epoch, since := false, int64(0), time.Time{}
	if c != nil {
		suspected = c.Data[restoreState] == RestoreSuspected
		epoch, _ = strconv.ParseInt(c.Data[restoreEpoch], 10, 64) // 0: somebody else's
		since, _ = time.Parse(time.RFC3339, c.Data[restoreSince]) // zero: as well
	}
	r.mu.Lock()
	news := suspected != r.suspected
	r.suspected, r.epoch, r.since = suspected, epoch, since
	r.mu.Unlock()
	switch {
	case !news:
		return
	case suspected:
		r.log.Info("The hub seems to be restored from a backup: nothing is deleted or rolled back in members until that is confirmed; run orrery server confirm-restore",
			"reason", c.Data[restoreReason], "since", c.Data[restoreSince])
	default:
		r.log.Info("The restore of the hub is confirmed")
	}
	r.turned()
}

// verify finds out from the hub itself whether a copy is newer than it. It returns false while
// only the caches of this process are older than the copy.
func (r *restore) verify(ctx context.Context, b *workv1alpha2.ResourceBinding, o mirror.Object) (bool, error) {
	copied, err := r.key().Verify(o.Source)
	if err != nil {
		return false, nil //nolint:nilerr // not made by this hub: it says nothing
	}
	now := mark.Source{Template: copied.Template, Generation: copied.Generation, Epoch: r.Epoch()}
	live := binding.Object(b.DeepCopy())
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(live), live); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get binding: %w", err)
	}
	now.Version, now.Placement = version(live.GetResourceVersion()), live.GetGeneration()
	if live.GetUID() != o.Binding {
		copied.Placement = 0 // that of another binding
	}
	template := &metav1.PartialObjectMetadata{}
	template.SetGroupVersionKind(binding.Kind(b))
	err = r.reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.Resource.Name}, template)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, fmt.Errorf("get template: %w", err)
	case template.UID == copied.Template:
		now.Generation, now.Version = template.Generation, version(template.ResourceVersion)
	}
	if !copied.Newer(now) {
		return false, nil
	}
	reason := fmt.Sprintf("%s in cluster %s is of generation %d, resourceVersion %d and placement %d; the hub has generation %d, resourceVersion %d and placement %d",
		objectOf(o), o.Cluster, copied.Generation, copied.Version, copied.Placement, now.Generation, now.Version, now.Placement)
	if err := r.suspect(ctx, reason, now.Epoch, copied.Epoch); err != nil {
		return false, err
	}
	return r.Suspected(), nil // it may have been confirmed meanwhile
}

// left finds out whether an orphan shows that the hub was restored: it was left as its Cluster
// went, and the hub has that Cluster.
func (r *restore) left(ctx context.Context, c *clusterv1alpha1.Cluster, o mirror.Object, from mark.Source) (bool, error) {
	judged := r.Epoch()
	if from.Cluster != c.UID || from.Epoch < judged {
		return false, nil
	}
	live := &clusterv1alpha1.Cluster{}
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(c), live); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get cluster: %w", err)
	}
	if live.UID != c.UID || !live.DeletionTimestamp.IsZero() {
		return false, nil
	}
	reason := fmt.Sprintf("%s in cluster %s was left there when the cluster was unjoined; the hub has it joined as it was before", objectOf(o), o.Cluster)
	if err := r.suspect(ctx, reason, judged, from.Epoch); err != nil {
		return false, err
	}
	return r.Suspected(), nil // it may have been confirmed meanwhile
}

// suspect remembers, across restarts, that the hub seems to be restored: a copy of the epoch seen
// is newer than the hub of the epoch judged.
func (r *restore) suspect(ctx context.Context, reason string, judged, seen int64) error {
	if r.Suspected() || r.Epoch() != judged {
		return nil
	}
	c := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: RestoreConfigMap}
	err := r.reader.Get(ctx, key, c)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ConfigMap %s: %w", key, err)
	}
	fresh := apierrors.IsNotFound(err)
	if said, _ := strconv.ParseInt(c.Data[restoreEpoch], 10, 64); said > judged {
		return nil // it is suspected, or confirmed, already: its event is on its way
	}
	c.Namespace, c.Name = key.Namespace, key.Name
	c.Data = map[string]string{
		restoreState: RestoreSuspected, restoreEpoch: strconv.FormatInt(max(r.Epoch(), seen)+1, 10),
		restoreSince: time.Now().UTC().Format(time.RFC3339), restoreReason: reason,
	}
	if fresh {
		err = r.hub.Create(ctx, c)
	} else {
		err = r.hub.Update(ctx, c)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return nil // another worker says so; its event tells
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", key, err)
	}
	r.set(c)
	r.recorded(reason)
	return nil
}

// version reads a resourceVersion of the hub; 0 when it is not a number.
func version(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
