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

// Files is a Store for the command line. Its value is the path of a directory. The directory of
// each cluster in it contains state.json, hosts/HOST.json, lock, kubeconfig, operations/NAME.yaml
// and logs/NAME/HOST.log. Only the owner can read the files. Directories are created when something
// is written.
type Files string

// DefaultFiles returns the Store in the directory $XDG_DATA_HOME/orrery/clusters. Without that
// variable the directory is ~/.local/share/orrery/clusters. Without a home directory it is the same
// path below the working directory. DefaultFiles creates nothing.
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

// Path returns the path of a file in the directory of a cluster, or that of the directory itself if
// elem is empty. It creates nothing.
func (f Files) Path(cluster string, elem ...string) string {
	return filepath.Join(append([]string{string(f), cluster}, elem...)...)
}

// Load implements Store. It reads the state of a cluster from its files, or returns nil without an
// error if there is none.
func (f Files) Load(ctx context.Context, cluster string) (*State, error) {
	return LoadState(ctx, filePieceStore{f, cluster}, cluster)
}

// Save implements Store. It writes what has changed of the state of a cluster to its files. It
// waits for the lock on these files, and also removes partial files that killed processes left. It
// returns ErrStale if another process has saved the state since s was loaded.
func (f Files) Save(ctx context.Context, s *State) error {
	lock, err := f.lock(ctx, f.Path(s.Cluster, stateLock))
	if err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", s.Cluster, err)
	}
	defer disk.Unlock(lock)
	pieces := filePieceStore{f, s.Cluster}
	if err := pieces.sweep(); err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", s.Cluster, err)
	}
	return SaveState(ctx, pieces, s)
}

// Remove implements Store. It deletes the files with the state of a cluster, and also the
// kubeconfig, even if no state is stored. Records of runs stay. It returns ErrStale if another
// process has saved the state since s was loaded.
func (f Files) Remove(ctx context.Context, s *State) error {
	lock, err := f.lock(ctx, f.Path(s.Cluster, stateLock))
	if err != nil {
		return fmt.Errorf("forget cluster %s: %w", s.Cluster, err)
	}
	defer disk.Unlock(lock)
	pieces := filePieceStore{f, s.Cluster}
	if err := RemoveState(ctx, pieces, s); err != nil {
		return err
	}
	err = errors.Join(pieces.sweep(), os.RemoveAll(f.Path(s.Cluster, hostsDir)), os.RemoveAll(f.Path(s.Cluster, "kubeconfig")))
	if err != nil {
		return fmt.Errorf("forget cluster %s: %w", s.Cluster, err)
	}
	return nil
}

// Lock implements Store. It locks a cluster for a run, and returns the function that ends the lock.
// If another process holds the lock, it returns an error that wraps ErrLocked at once, because a
// run takes minutes. It creates the directory of the cluster.
func (f Files) Lock(_ context.Context, cluster string) (func(), error) {
	path := f.Path(cluster, "lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
	}
	file, err := disk.TryLock(path)
	if errors.Is(err, disk.ErrLocked) {
		return nil, fmt.Errorf("cluster %s: %w on this machine; watch it with %q", cluster, ErrLocked, "orrery operation list")
	}
	if err != nil {
		return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
	}
	return func() { disk.Unlock(file) }, nil
}

// IsBusy reports whether a process on this machine works on a cluster: whether it holds the lock of
// Lock. It changes nothing, and does not prevent another process from taking the lock.
func (f Files) IsBusy(cluster string) (bool, error) {
	busy, err := disk.IsLocked(f.Path(cluster, "lock"))
	if err != nil {
		return false, fmt.Errorf("see whether cluster %s is locked: %w", cluster, err)
	}
	return busy, nil
}

// lock locks the file at path, which it creates with its directory. It waits for a process that
// holds the lock, since such locks are held only briefly. It waits even if ctx has ended, because
// the end of a run must be recorded. The caller ends the lock with disk.Unlock.
func (Files) lock(ctx context.Context, path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return disk.Lock(context.WithoutCancel(ctx), path)
}

// operationPath returns the path of the file of an Operation. The name of an Operation is
// CLUSTER-N, which gives the directory.
func (f Files) operationPath(name string) string {
	cluster, _, _ := cutLast(name, "-")
	return f.Path(cluster, "operations", name+".yaml")
}

// cutLast cuts s around the last occurrence of sep. If sep does not occur, it returns s, "" and
// false.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// update reads an Operation from its file, calls change with it, stores the result and returns it.
// Meanwhile it holds the lock on the Operations of the cluster, so no other process changes them.
// It returns an error if no Operation has this name.
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

// unknownOperation returns the error for the name of an Operation that does not exist.
func unknownOperation(name string) error {
	return fmt.Errorf("operation %q: there is no such operation; see %q", name, "orrery operation list")
}

// read reads an Operation from its file. Unknown fields are an error.
func (f Files) read(path string) (*lifecyclev1alpha1.Operation, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read operation: %w", err)
	}
	op := &lifecyclev1alpha1.Operation{}
	if err := yaml.UnmarshalStrict(content, op); err != nil {
		return nil, fmt.Errorf("read operation %s: %w; remove the file and run the command again: the hosts have their own record of what was done", path, err)
	}
	return op, nil
}

// Create implements Store. It stores a new Operation in a file, and sets its name, UID, creation
// time and phase. It returns an error while another Operation of the cluster is unfinished. Old
// ended Operations of the cluster (see Outdated) are deleted with their logs.
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

// encode returns an Operation as YAML for its file. Control characters, which a host may have sent
// in a message, are escaped first, because YAML refuses them.
func encode(op *lifecyclev1alpha1.Operation) ([]byte, error) {
	text, err := json.Marshal(op)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(neutral.JSONForYAML(text))
}

// unfinishedError returns the error of Create for an unfinished Operation of the cluster. It names
// the commands that continue or end that Operation.
func unfinishedError(op *lifecyclev1alpha1.Operation) error {
	return fmt.Errorf("operation %s (%s of cluster %s) is unfinished: go on with %q, or end it with %q",
		op.Name, op.Spec.Action, op.Spec.Cluster, "orrery operation resume "+op.Name, "orrery operation cancel "+op.Name)
}

// Operation implements Store. It reads the Operation with this name from its file. It returns an
// error if there is none.
func (f Files) Operation(_ context.Context, name string) (*lifecyclev1alpha1.Operation, error) {
	path := f.operationPath(name)
	if _, err := os.Stat(path); err != nil {
		return nil, unknownOperation(name)
	}
	return f.read(path)
}

// Operations implements Store. It reads the Operations of a cluster from their files, or those of
// all clusters if cluster is "", the oldest first. A file that cannot be read is an error.
func (f Files) Operations(_ context.Context, cluster string) ([]lifecyclev1alpha1.Operation, error) {
	if cluster == "" {
		cluster = "*"
	}
	if _, err := os.ReadDir(string(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list operations: %w", err) // Glob would ignore this error
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
		// The names are CLUSTER-N, so a longer name has the greater number.
		return cmp.Or(len(a.Name)-len(b.Name), strings.Compare(a.Name, b.Name))
	})
	return ops, nil
}

// Steps implements Store. It returns the steps in the file of the Operation. Record has kept at
// most maxSteps there.
func (f Files) Steps(ctx context.Context, op *lifecyclev1alpha1.Operation) ([]lifecyclev1alpha1.StepRecord, error) {
	kept, err := f.Operation(ctx, op.Name)
	if err != nil {
		return nil, err
	}
	return kept.Status.Steps, nil
}

// maxSteps is how many steps of an Operation its file keeps. Each write replaces the whole file.
const maxSteps = 4000

// Record implements Store. It writes the status of op to the file of the Operation, with at most
// maxSteps steps, see newest. It sets the whole spec of op to the stored one.
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

// newest returns at most n records of steps, in their order, for the file of an Operation. It first
// drops steps that have ended without an error, the oldest first. If more than n remain, it drops
// the oldest of them. It does not change steps, and may return the same slice.
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

// Control implements Store. It changes the stored spec of an Operation, for example to pause the
// run: it calls change with the spec and writes the result. It returns an error if there is no such
// Operation.
func (f Files) Control(ctx context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error {
	_, err := f.update(ctx, name, func(op *lifecyclev1alpha1.Operation) { change(&op.Spec) })
	return err
}

// Log implements Store. It opens the file logs/OPERATION/HOST.log in the directory of the cluster
// for appending, and creates the file if needed. The caller closes it.
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

// SaveKubeconfig stores the administrator's kubeconfig in the directory of a cluster, replaces an
// earlier one, and returns its path.
func (f Files) SaveKubeconfig(cluster string, kubeconfig []byte) (string, error) {
	path := f.Path(cluster, "kubeconfig")
	if err := writeFile(path, kubeconfig); err != nil {
		return "", fmt.Errorf("keep the kubeconfig of cluster %s: %w", cluster, err)
	}
	return path, nil
}

// writeFile writes a file that only the owner can read, or replaces it, in one atomic step. It
// creates the directory if needed.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return disk.WriteFile(path, 0o600, content)
}
