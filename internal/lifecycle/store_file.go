package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/yaml"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// Files is a Store in a directory: DIR/CLUSTER has state.json, lock, kubeconfig, operations/NAME.yaml and logs/NAME/HOST.log.
// Everything is readable by its owner only.
type Files string

// DefaultFiles is $XDG_DATA_HOME/orrery/clusters, by default in ~/.local/share.
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

// Path of something of a cluster.
func (f Files) Path(cluster string, elem ...string) string {
	return filepath.Join(append([]string{string(f), cluster}, elem...)...)
}

// Load implements Store.
func (f Files) Load(_ context.Context, cluster string) (*State, error) {
	path := f.Path(cluster, "state.json")
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // the contract of Store
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %w", cluster, err)
	}
	s := &State{}
	if err := json.Unmarshal(content, s); err != nil {
		return nil, fmt.Errorf("read the state of cluster %s: %s is damaged (%w); restore it from a backup: it has the cluster's keys", cluster, path, err)
	}
	return s, nil
}

// Save implements Store.
func (f Files) Save(_ context.Context, s *State) error {
	content, err := json.Marshal(s)
	if err == nil {
		err = writeFile(f.Path(s.Cluster, "state.json"), content)
	}
	if err != nil {
		return fmt.Errorf("keep the state of cluster %s: %w", s.Cluster, err)
	}
	return nil
}

// Remove implements Store.
func (f Files) Remove(_ context.Context, cluster string) error {
	for _, name := range []string{"state.json", "kubeconfig"} {
		if err := os.Remove(f.Path(cluster, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget cluster %s: %w", cluster, err)
		}
	}
	return nil
}

// Lock implements Store. It does not wait: who waits for a run that takes minutes wants to know.
func (f Files) Lock(_ context.Context, cluster string) (func(), error) {
	file, err := f.lock(f.Path(cluster, "lock"), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("cluster %s: another orrery works on it on this machine; watch it with %q", cluster, "orrery operation list")
	}
	if err != nil {
		return nil, fmt.Errorf("lock cluster %s: %w", cluster, err)
	}
	return func() { _ = file.Close() }, nil // only a lock
}

func (f Files) lock(path string, how int) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), how); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// operationPath of a name, which is CLUSTER-N.
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

// update changes a record while no other process does.
func (f Files) update(name string, change func(*lifecyclev1alpha1.Operation)) (*lifecyclev1alpha1.Operation, error) {
	path := f.operationPath(name)
	if _, err := os.Stat(path); err != nil {
		return nil, unknownOperation(name)
	}
	lock, err := f.lock(filepath.Join(filepath.Dir(path), ".lock"), syscall.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("lock operation %s: %w", name, err)
	}
	defer lock.Close() //nolint:errcheck // only a lock
	op, err := f.read(path)
	if err != nil {
		return nil, err
	}
	change(op)
	content, err := yaml.Marshal(op)
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
	lock, err := f.lock(filepath.Join(dir, ".lock"), syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("record an operation: %w", err)
	}
	defer lock.Close() //nolint:errcheck // only a lock
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
	op.TypeMeta = metav1.TypeMeta{APIVersion: lifecyclev1alpha1.GroupVersion.String(), Kind: "Operation"}
	op.Name = fmt.Sprintf("%s-%d", op.Spec.Cluster, next)
	op.UID = uuid.NewUUID()
	op.CreationTimestamp = metav1.Now()
	op.Status.Phase = lifecyclev1alpha1.PhasePending
	content, err := yaml.Marshal(op)
	if err == nil {
		err = writeFile(f.operationPath(op.Name), content)
	}
	if err != nil {
		return fmt.Errorf("record operation %s: %w", op.Name, err)
	}
	return nil
}

// unfinishedError says that a run stands in the way, and what to do about it.
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
		return cmp.Or(len(a.Name)-len(b.Name), strings.Compare(a.Name, b.Name)) // of one second: the names end in numbers
	})
	return ops, nil
}

// Record implements Store.
func (f Files) Record(_ context.Context, op *lifecyclev1alpha1.Operation) error {
	kept, err := f.update(op.Name, func(kept *lifecyclev1alpha1.Operation) { kept.Status = op.Status })
	if err != nil {
		return err
	}
	op.Spec = kept.Spec
	return nil
}

// Control implements Store.
func (f Files) Control(_ context.Context, name string, change func(*lifecyclev1alpha1.OperationSpec)) error {
	_, err := f.update(name, func(op *lifecyclev1alpha1.Operation) { change(&op.Spec) })
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

// SaveKubeconfig keeps the kubeconfig of a cluster and returns its path.
func (f Files) SaveKubeconfig(cluster string, kubeconfig []byte) (string, error) {
	path := f.Path(cluster, "kubeconfig")
	if err := writeFile(path, kubeconfig); err != nil {
		return "", fmt.Errorf("keep the kubeconfig of cluster %s: %w", cluster, err)
	}
	return path, nil
}

// writeFile writes beside and renames, so that the file is the old or the new one, whatever happens.
func writeFile(path string, content []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if _, err := file.Write(content); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	// The name is durable only once the directory is.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
