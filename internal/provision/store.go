package provision

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

const (
	// stateKey is the key of a Secret that has a cluster's state.
	stateKey = "state.json.gz"
	// maxState is what fits in a Secret.
	maxState = 1 << 20
	// maxRecord is how large the steps of a record may be, as JSON, for the API server's store to take it.
	maxRecord = 1 << 20
	// recordEvery is the least time between two records of a run that goes on. What was left out is in the next.
	recordEvery = time.Second
)

// Store is a lifecycle.Store on a hub. The state of a cluster is in a Secret, Operations are objects, and logs are files.
type Store struct {
	// Client reads what is there, not what a cache says.
	Client client.Client
	// Cached lists Operations, without their steps.
	Cached client.Reader
	// Logs is the directory of the logs.
	Logs string
	// Holder says in Leases who works on a cluster.
	Holder string
	// Lost is called when another server has taken a cluster over.
	Lost func(cluster string)

	mu       sync.Mutex
	locked   map[string]bool
	recorded map[string]time.Time
}

var _ lifecycle.Store = (*Store)(nil)

// objectName of the state and the lease of a cluster. A dot keeps them apart from the credentials of any cluster, which have
// its name.
func objectName(cluster string) string { return cluster + ".lifecycle" }

func stateSecret(cluster string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: clusterv1alpha1.SecretNamespace, Name: objectName(cluster)}}
}

// Load implements lifecycle.Store.
func (s *Store) Load(ctx context.Context, cluster string) (*lifecycle.State, error) {
	secret := stateSecret(cluster)
	key := client.ObjectKeyFromObject(secret)
	err := s.Client.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // the contract of lifecycle.Store
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %w", cluster, err)
	}
	state := &lifecycle.State{}
	if err := unpack(secret.Data[stateKey], state); err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: Secret %s is damaged (%w); restore it from a backup: it has the cluster's keys", cluster, key, err)
	}
	return state, nil
}

// Save implements lifecycle.Store.
func (s *Store) Save(ctx context.Context, state *lifecycle.State) error {
	content, err := pack(state)
	if err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", state.Cluster, err)
	}
	if len(content) > maxState {
		return fmt.Errorf("keep the state of cluster %s: it has %d bytes, and a Secret takes %d: make spec.provision smaller, by shorter scripts and values of charts",
			state.Cluster, len(content), maxState)
	}
	secret := stateSecret(state.Cluster)
	err = s.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	fresh := apierrors.IsNotFound(err)
	if err == nil && bytes.Equal(secret.Data[stateKey], content) {
		return nil
	}
	secret.Data = map[string][]byte{stateKey: content}
	switch {
	case fresh:
		secret.Type, secret.Labels = corev1.SecretTypeOpaque, map[string]string{"app.kubernetes.io/part-of": "orrery"}
		err = s.Client.Create(ctx, secret)
	case err == nil:
		err = s.Client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("keep the state of cluster %s in Secret %s: %w", state.Cluster, client.ObjectKeyFromObject(secret), err)
	}
	return nil
}

// Remove implements lifecycle.Store.
func (s *Store) Remove(ctx context.Context, cluster string) error {
	if err := s.Client.Delete(ctx, stateSecret(cluster)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("forget cluster %s: %w", cluster, err)
	}
	return nil
}

func pack(v any) ([]byte, error) {
	var content bytes.Buffer
	w := gzip.NewWriter(&content)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return content.Bytes(), nil
}

func unpack(content []byte, v any) error {
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("key %q: %w", stateKey, err)
	}
	text, err := io.ReadAll(r) // to the end, where the checksum is
	if err != nil {
		return fmt.Errorf("key %q: %w", stateKey, err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("key %q: %w", stateKey, err)
	}
	return nil
}

// Create implements lifecycle.Store. The Operations of a cluster are numbered.
func (s *Store) Create(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	cluster := op.Spec.Cluster
	before, err := s.Operations(ctx, cluster)
	if err != nil {
		return err
	}
	next := 1
	for _, o := range before {
		if lifecycle.Unfinished(&o) {
			return fmt.Errorf("operation %s (%s of cluster %s) is unfinished: wait for it, or set its spec.canceled", o.Name, o.Spec.Action, cluster)
		}
		number, ok := strings.CutPrefix(o.Name, cluster+"-")
		if n, err := strconv.Atoi(number); ok && err == nil {
			next = max(next, n+1)
		}
	}
	for ; ; next++ {
		op.Name, op.ResourceVersion = fmt.Sprintf("%s-%d", cluster, next), ""
		err := s.Client.Create(ctx, op)
		if err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create operation %s: %w", op.Name, err)
		}
		// Of this cluster, and the cache is behind; or a user gave one of another cluster this name.
		other, e := s.Operation(ctx, op.Name)
		if e != nil || other.Spec.Cluster == cluster {
			return fmt.Errorf("create operation %s: %w", op.Name, err)
		}
	}
}

// Operation implements lifecycle.Store.
func (s *Store) Operation(ctx context.Context, name string) (*lifecyclev1alpha1.Operation, error) {
	op := &lifecyclev1alpha1.Operation{}
	if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, op); err != nil {
		return nil, fmt.Errorf("get operation %s: %w", name, err)
	}
	return op, nil
}

// Operations implements lifecycle.Store. They are without their steps.
func (s *Store) Operations(ctx context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error) {
	var opts []client.ListOption
	if cluster != "" {
		opts = append(opts, client.MatchingFields{byCluster: cluster})
	}
	list := &lifecyclev1alpha1.OperationList{}
	if err := s.Cached.List(ctx, list, opts...); err != nil {
		return nil, fmt.Errorf("list the operations of cluster %s: %w", cluster, err)
	}
	slices.SortFunc(list.Items, inOrder)
	return list.Items, nil
}

// inOrder compares Operations by when they were made. Of one second, those come first that have ended, and oak-9 comes before
// oak-10.
func inOrder(a, b lifecyclev1alpha1.Operation) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		ended(a).Compare(ended(b)),
		cmp.Compare(len(a.Name), len(b.Name)),
		cmp.Compare(a.Name, b.Name),
	)
}

// ended is when an Operation ended; for one that has not, a time that no other has.
func ended(op lifecyclev1alpha1.Operation) time.Time {
	if op.Status.Finished == nil {
		return time.Unix(math.MaxInt32, 0)
	}
	return op.Status.Finished.Time
}

// Record implements lifecycle.Store. While a run goes on, not every change is written.
func (s *Store) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	if !s.due(op) {
		return nil
	}
	written := op.DeepCopy()
	fit(&written.Status)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		status := written.Status
		err := s.Client.Status().Update(ctx, written)
		if !apierrors.IsConflict(err) {
			return err
		}
		// The spec was changed, which is no reason not to keep the status; if another process runs it, that is.
		if e := s.Client.Get(ctx, client.ObjectKeyFromObject(op), written); e != nil {
			return e
		}
		if written.Status.Attempt > status.Attempt {
			return fmt.Errorf("another server has taken it over (attempt %d)", written.Status.Attempt)
		}
		written.Status = status
		return err
	})
	if err != nil {
		return fmt.Errorf("record operation %s: %w", op.Name, err)
	}
	op.Spec, op.ResourceVersion = written.Spec, written.ResourceVersion
	return nil
}

// due reports whether a record is to be written now. The first and the last of a run always are.
func (s *Store) due(op *lifecyclev1alpha1.Operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.Status.Phase != lifecyclev1alpha1.PhaseRunning {
		delete(s.recorded, op.Name)
		return true
	}
	if time.Since(s.recorded[op.Name]) < recordEvery {
		return false
	}
	if s.recorded == nil {
		s.recorded = map[string]time.Time{}
	}
	s.recorded[op.Name] = time.Now()
	return true
}

// fit drops the records of steps that succeeded, the oldest first, until the rest can be stored.
func fit(status *lifecyclev1alpha1.OperationStatus) {
	size := 0
	for _, r := range status.Steps {
		size += recordSize(r)
	}
	status.Steps = slices.DeleteFunc(status.Steps, func(r lifecyclev1alpha1.StepRecord) bool {
		if size <= maxRecord || r.State == lifecyclev1alpha1.StepFailed {
			return false
		}
		size -= recordSize(r)
		return true
	})
	for i := range status.Steps {
		if size <= maxRecord {
			return
		}
		r := &status.Steps[i]
		size -= len(r.Message)
		r.Message = ""
	}
}

// recordSize is about how long a record is as JSON.
func recordSize(r lifecyclev1alpha1.StepRecord) int {
	const names = 200 // and times
	return names + len(r.Host) + len(r.ID) + len(r.InputHash) + len(r.Message)
}

// Control implements lifecycle.Store.
func (s *Store) Control(ctx context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		op := &lifecyclev1alpha1.Operation{}
		if err := s.Client.Get(ctx, client.ObjectKey{Name: name}, op); err != nil {
			return err
		}
		change(&op.Spec)
		return s.Client.Update(ctx, op)
	})
	if err != nil {
		return fmt.Errorf("change operation %s: %w", name, err)
	}
	return nil
}
