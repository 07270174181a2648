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

// RestoreConfigMap is the name of the ConfigMap, in the namespace
// clusterv1alpha1.SecretNamespace, that says whether the hub was restored from a backup. Its
// state is RestoreSuspected or RestoreConfirmed. A person confirms a restore by setting the
// state (orrery server confirm-restore).
const (
	RestoreConfigMap = "hub-restore"

	restoreState, restoreEpoch, restoreSince, restoreReason = "state", "epoch", "since", "reason"

	RestoreSuspected = "Suspected"
	RestoreConfirmed = "Confirmed"
)

// restore knows whether the hub was restored from a backup, from the ConfigMap RestoreConfigMap.
// While a restore is suspected, nothing is deleted or rolled back in members: a copy that the hub
// does not know may be all that is left of a change. The methods may be called by several
// goroutines.
type restore struct {
	hub      client.Client
	reader   client.Reader // not cached
	key      func() mark.Key
	log      logr.Logger
	turned   func() // called after suspected changed
	recorded func(reason string)

	mu        sync.Mutex
	suspected bool
	epoch     int64     // the number of confirmed restores, plus one while one is suspected
	since     time.Time // when the last suspicion began; zero: there was none
}

// hubPatience bounds how long verify and left read from the hub, and then how long suspect takes to
// write. The write has its own time: otherwise slow reads would make it fail each time.
const hubPatience = 10 * time.Second

// confirmedSince returns the time at which the suspicion of the confirmed restore began. Records
// up to that time may be about changes that the hub lost. The time is zero if no restore was
// confirmed, or while another one is suspected.
func (r *restore) confirmedSince() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suspected || r.since.IsZero() {
		return time.Time{}
	}
	return r.since.Add(time.Second) // the ConfigMap has seconds only
}

// Suspected reports whether the hub seems to be restored from a backup and no user has confirmed
// the restore.
func (r *restore) Suspected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suspected
}

// Epoch returns the number of confirmed restores. A restore that is only suspected does not
// count.
func (r *restore) Epoch() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.suspected {
		return r.epoch - 1
	}
	return r.epoch
}

// watch makes the informers call set for every change of RestoreConfigMap. The result reports
// whether the ConfigMap, or its absence, was read once.
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

// set replaces the state by the state in the ConfigMap. A nil ConfigMap does not exist: no
// restore is suspected. If suspected changed, set logs that and calls r.turned.
func (r *restore) set(c *corev1.ConfigMap) {
	suspected, epoch, since := false, int64(0), time.Time{}
	if c != nil {
		suspected = c.Data[restoreState] == RestoreSuspected
		epoch, _ = strconv.ParseInt(c.Data[restoreEpoch], 10, 64) // 0 if a user wrote an invalid number
		since, _ = time.Parse(time.RFC3339, c.Data[restoreSince]) // zero if a user wrote an invalid time
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

// verify reads the binding and the template from the API server of the hub and compares them with
// the mark of a copy. If the copy is newer, verify records that the hub seems to be restored, and
// returns true. It returns false if another process recorded or a user confirmed that meanwhile,
// if only the caches of this process are older than the copy, or if the mark is not from this hub.
// It reads for at most hubPatience.
func (r *restore) verify(ctx context.Context, b *workv1alpha2.ResourceBinding, o mirror.Object) (bool, error) {
	copied, err := r.key().Verify(o.Source)
	if err != nil {
		return false, nil // a mark that this hub did not sign shows nothing
	}
	now := mark.Source{Template: copied.Template, Generation: copied.Generation, Epoch: r.Epoch()}
	reading, cancel := context.WithTimeout(ctx, hubPatience)
	defer cancel()
	live := binding.Object(b.DeepCopy())
	if err := r.reader.Get(reading, client.ObjectKeyFromObject(live), live); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get binding: %w", err)
	}
	now.Version, now.Placement = version(live.GetResourceVersion()), live.GetGeneration()
	if live.GetUID() != o.Binding {
		copied.Placement = 0 // the mark has the generation of another binding
	}
	template := &metav1.PartialObjectMetadata{}
	template.SetGroupVersionKind(binding.Kind(b))
	err = r.reader.Get(reading, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.Resource.Name}, template)
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
	return r.Suspected(), nil // a user may have confirmed the restore meanwhile
}

// left finds out whether an orphan shows that the hub was restored. Object o became an orphan when
// its Cluster was deleted, and from is its mark from that time. If the hub has that Cluster, and it
// is not being deleted, the hub was restored. left reads the Cluster from the hub, records that a
// restore is suspected, and returns true. c is the Cluster in the cache. left reads for at most
// hubPatience.
func (r *restore) left(ctx context.Context, c *clusterv1alpha1.Cluster, o mirror.Object, from mark.Source) (bool, error) {
	judged := r.Epoch()
	if from.Cluster != c.UID || from.Epoch < judged {
		return false, nil
	}
	reading, cancel := context.WithTimeout(ctx, hubPatience)
	defer cancel()
	live := &clusterv1alpha1.Cluster{}
	if err := r.reader.Get(reading, client.ObjectKeyFromObject(c), live); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get cluster: %w", err)
	}
	if live.UID != c.UID || !live.DeletionTimestamp.IsZero() {
		return false, nil
	}
	reason := fmt.Sprintf("%s in cluster %s was left there when the cluster was unjoined; the hub has it joined as it was before", objectOf(o), o.Cluster)
	if err := r.suspect(ctx, reason, judged, from.Epoch); err != nil {
		return false, err
	}
	return r.Suspected(), nil // a user may have confirmed the restore meanwhile
}

// suspect records in RestoreConfigMap that the hub seems to be restored, and sets the state and
// calls r.recorded. seen is the epoch in the mark that shows it, and judged the epoch of the hub
// with which the mark was compared. It does nothing if a restore is suspected already, or was
// confirmed since judged was read. If another process writes the ConfigMap first, it returns nil,
// and the event of the ConfigMap sets the state. It takes at most hubPatience.
func (r *restore) suspect(ctx context.Context, reason string, judged, seen int64) error {
	if r.Suspected() || r.Epoch() != judged {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hubPatience)
	defer cancel()
	c := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: RestoreConfigMap}
	err := r.reader.Get(ctx, key, c)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get ConfigMap %s: %w", key, err)
	}
	fresh := apierrors.IsNotFound(err)
	if said, _ := strconv.ParseInt(c.Data[restoreEpoch], 10, 64); said > judged {
		// A restore is suspected or confirmed already: the event of the ConfigMap will come.
		return nil
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
		return nil // another process wrote the ConfigMap: its event will come
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", key, err)
	}
	r.set(c)
	r.recorded(reason)
	return nil
}

// version parses a resourceVersion of the hub; 0 if it is not a number.
func version(resourceVersion string) uint64 {
	n, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
