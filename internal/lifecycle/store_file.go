package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/yaml"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/neutral"
)

// Files is a Store in a directory. DIR/CLUSTER contains state.json, hosts/HOST.json, lock,
// kubeconfig, operations/NAME.yaml and logs/NAME/HOST.log. Only the owner can read the files.
type Files string

// DefaultFiles returns the directory $XDG_DATA_HOME/orrery/clusters, by default in
// ~/.local/share.
func DefaultFiles() Files {
	base := os.Getenv("XDG_DATA_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = "."
		}
		base = filepath.Join(home, ".local", "share")
	}
	return Files(filepath.Join(base, "orrery", "clusters"))
}

// Path returns a path in the directory of a cluster.
func (f Files) Path(cluster string, elem ...string) string {
	return filepath.Join(append([]string{string(f), cluster}, elem...)...)
}

// Load implements Store.
func (f Files) Load(ctx context.Context, cluster string) (*State, error) {
	return LoadState(ctx, fileShelf{f, cluster}, cluster)
}

// Save implements Store.
func (f Files) Save(ctx context.Context, s *State) error {
	lock, err := f.lock(ctx, f.Path(s.Cluster, stateLock))
	if err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", s.Cluster, err)
	}
	defer disk.Unlock(lock)
	shelf := fileShelf{f, s.Cluster}
	if err := shelf.sweep(); err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", s.Cluster, err)
	}
	return SaveState(ctx, shelf, s)
}

// Remove implements Store.
func (f Files) Remove(ctx context.Context, s *State) error {
	lock, err := f.lock(ctx, f.Path(s.Cluster, stateLock))
	if err != nil {
		return fmt.Errorf("forget cluster %s: %w", s.Cluster, err)
	}
	defer disk.Unlock(lock)
	shelf := fileShelf{f, s.Cluster}
	if err := RemoveState(ctx, shelf, s); err != nil {
		return err
	}
	err = errors.Join(shelf.sweep(), os.RemoveAll(f.Path(s.Cluster, hostsDir)), os.RemoveAll(f.Path(s.Cluster, "kubeconfig")))
	if err != nil {
		return fmt.Errorf("forget cluster %s: %w", s.Cluster, err)
	}
	return nil
}

// Lock implements Store. It does not wait, since a run takes minutes and the user should know of
// it.
func (f Files) Lock(_ context.Context, cluster string) (func(), error) {
	path := f.Path(cluster, "lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
	}
	file, err := disk.TryLock(path)
	if errors.Is(err, disk.ErrLocked) {
		return nil, fmt.Errorf("cluster %s: another orrery works on it on this machine; watch it with %q", cluster, "orrery operation list")
	}
	if err != nil {
		return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
	}
	return func() { disk.Unlock(file) }, nil
}

// lock waits for a lock that is held only briefly. It waits even if ctx has ended, because the end
// of a run must be recorded.
func (Files) lock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return disk.Lock(context.WithoutCancel(ctx), path)
}

// operationPath returns the file of an Operation. Its name is CLUSTER-N.
func (f Files) operationPath(name string) string {
	cluster, _, _ := cutLast(name, "-")
	return f.Path(cluster, "operations", name+".yaml")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// update changes a record under the lock of the records.
func (f Files) update(ctx context.Context, name string, change func(*lifecyclev1alpha1.Operation)) (*lifecyclev1alpha1.Operation, error) {
	path := f.operationPath(name)
	if _, err := os.Stat(path); err != nil {
		return nil, unknownOperation(name)
	}
	lock, err := f.lock(ctx, filepath.Join(filepath.Dir(path), ".lock"))
	if err != nil {
		return nil, fmt.Errorf("lock operation %s: %w", name, err)
	}
	defer disk.Unlock(lock)
	op, err := f.read(path)
	if err != nil {
		return nil, err
	}
	change(op)
	content, err := encode(op)
	if err == nil {
		err = writeFile(path, content)
	}
	if err != nil {
		return nil, fmt.Errorf("record operation %s: %w", name, err)
	}
	return op, nil
}

func unknownOperation(name string) error {
	return fmt.Errorf("operation %q: there is no such operation; see %q", name, "orrery operation list")
}

func (f Files) read(path string) (*lifecyclev1alpha1.Operation, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read operation: %w", err)
	}
	op := &lifecyclev1alpha1.Operation{}
	if err := yaml.UnmarshalStrict(content, op); err != nil {
		return nil, fmt.Errorf("read operation %s: %w; remove the file, the hosts know what was done", path, err)
	}
	return op, nil
}

// Create implements Store.
func (f Files) Create(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	dir := f.Path(op.Spec.Cluster, "operations")
	lock, err := f.lock(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return fmt.Errorf("record an operation: %w", err)
	}
	defer disk.Unlock(lock)
	before, err := f.Operations(ctx, op.Spec.Cluster)
	if err != nil {
		return err
	}
	next := 1
	for _, o := range before {
		if Unfinished(&o) {
			return unfinishedError(&o)
		}
		if _, n, ok := cutLast(o.Name, "-"); ok {
			if i, err := strconv.Atoi(n); err == nil && i >= next {
				next = i + 1
			}
		}
	}
	for _, o := range Outdated(before) {
		if err := errors.Join(disk.Remove(f.operationPath(o.Name)), os.RemoveAll(f.Path(op.Spec.Cluster, "logs", o.Name))); err != nil {
			return fmt.Errorf("remove operation %s, which is an old one: %w", o.Name, err)
		}
	}
	op.TypeMeta = metav1.TypeMeta{APIVersion: lifecyclev1alpha1.GroupVersion.String(), Kind: "Operation"}
	op.Name = fmt.Sprintf("%s-%d", op.Spec.Cluster, next)
	op.UID = uuid.NewUUID()
	op.CreationTimestamp = metav1.Now()
	op.Status.Phase = lifecyclev1alpha1.PhasePending
	content, err := encode(op)
	if err == nil {
		err = writeFile(f.operationPath(op.Name), content)
	}
	if err != nil {
		return fmt.Errorf("record operation %s: %w", op.Name, err)
	}
	return nil
}

// encode returns an Operation as YAML. Control characters, which a host may have sent in a
// message, are escaped first, because YAML refuses them.
func encode(op *lifecyclev1alpha1.Operation) ([]byte, error) {
	text, err := json.Marshal(op)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(neutral.JSONForYAML(text))
}

// unfinishedError names the Operation that is unfinished and the commands that continue or end it.
func unfinishedError(op *lifecyclev1alpha1.Operation) error {
	return fmt.Errorf("operation %s (%s of cluster %s) is unfinished: go on with %q, or end it with %q",
		op.Name, op.Spec.Action, op.Spec.Cluster, "orrery operation resume "+op.Name, "orrery operation cancel "+op.Name)
}

// Operation implements Store.
func (f Files) Operation(_ context.Context, name string) (*lifecyclev1alpha1.Operation, error) {
	path := f.operationPath(name)
	if _, err := os.Stat(path); err != nil {
		return nil, unknownOperation(name)
	}
	return f.read(path)
}

// Operations implements Store.
func (f Files) Operations(_ context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error) {
	if cluster == "" {
		cluster = "*"
	}
	if _, err := os.ReadDir(string(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list operations: %w", err) // Glob would find none
	}
	paths, err := filepath.Glob(f.Path(cluster, "operations", "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	ops := make([]lifecyclev1alpha1.Operation, 0, len(paths))
	for _, path := range paths {
		op, err := f.read(path)
		if err != nil {
			return nil, err
		}
		ops = append(ops, *op)
	}
	slices.SortFunc(ops, func(a, b lifecyclev1alpha1.Operation) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		// The names end in numbers.
		return cmp.Or(len(a.Name)-len(b.Name), strings.Compare(a.Name, b.Name))
	})
	return ops, nil
}

// Steps implements Store. The file has all steps that were kept.
func (f Files) Steps(ctx context.Context, op *lifecyclev1alpha1.Operation) ([]lifecyclev1alpha1.StepRecord, error) {
	kept, err := f.Operation(ctx, op.Name)
	if err != nil {
		return nil, err
	}
	return kept.Status.Steps, nil
}

// maxSteps bounds the steps in a file, because each write replaces the whole file.
const maxSteps = 4000

// Record implements Store.
func (f Files) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	kept, err := f.update(ctx, op.Name, func(kept *lifecyclev1alpha1.Operation) {
		kept.Status = op.Status
		kept.Status.Steps = newest(op.Status.Steps, maxSteps)
	})
	if err != nil {
		return err
	}
	op.Spec = kept.Spec
	return nil
}

// newest returns at most n records of steps. It drops steps that ended well first, the oldest of
// them before others. If that is not enough, it drops the oldest of the rest.
func newest(steps []lifecyclev1alpha1.StepRecord, n int) []lifecyclev1alpha1.StepRecord {
	over := len(steps) - n
	if over <= 0 {
		return steps
	}
	kept := make([]lifecyclev1alpha1.StepRecord, 0, len(steps))
	for _, r := range steps {
		if ended := r.State == lifecyclev1alpha1.StepUnchanged || r.State == lifecyclev1alpha1.StepChanged || r.State == lifecyclev1alpha1.StepReverted; ended && over > 0 {
			over--
			continue
		}
		kept = append(kept, r)
	}
	return kept[len(kept)-min(len(kept), n):]
}

// Control implements Store.
func (f Files) Control(ctx context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error {
	_, err := f.update(ctx, name, func(op *lifecyclev1alpha1.Operation) { change(&op.Spec) })
	return err
}

// Log implements Store.
func (f Files) Log(operation, host string) (io.WriteCloser, error) {
	cluster, _, _ := cutLast(operation, "-")
	path := f.Path(cluster, "logs", operation, host+".log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return file, nil
}

// SaveKubeconfig stores the kubeconfig of a cluster and returns its path.
func (f Files) SaveKubeconfig(cluster string, kubeconfig []byte) (string, error) {
	path := f.Path(cluster, "kubeconfig")
	if err := writeFile(path, kubeconfig); err != nil {
		return "", fmt.Errorf("keep the kubeconfig of cluster %s: %w", cluster, err)
	}
	return path, nil
}

// writeFile replaces a file and creates its directory if needed.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return disk.WriteFile(path, 0o600, content)
}
