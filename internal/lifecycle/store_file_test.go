package lifecycle_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/pki"
)

// ended creates an operation that is finished.
func ended(t *testing.T, f lifecycle.Files, cluster string) *lifecyclev1alpha1.Operation {
	t.Helper()
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: cluster, Action: lifecyclev1alpha1.ActionApply}}
	if err := f.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	op.Status.Phase = lifecyclev1alpha1.PhaseSucceeded
	if err := f.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	return op
}

func TestFilesListsOldestFirst(t *testing.T) {
	f := lifecycle.Files(t.TempDir())
	var want []string
	for range 12 { // more than fit in one digit, all within about a second
		want = append(want, ended(t, f, "oak").Name)
	}
	want = want[len(want)-lifecycle.MaxEnded-1:] // those that the last one found ended, and itself
	other := ended(t, f, "elm").Name
	for cluster, want := range map[string][]string{"oak": want, "elm": {other}, "fir": nil} {
		ops, err := f.Operations(t.Context(), cluster)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, op := range ops {
			got = append(got, op.Name)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("operations of %s: %s", cluster, d)
		}
	}
	if all, err := f.Operations(t.Context(), ""); err != nil || len(all) != len(want)+1 {
		t.Errorf("operations of all clusters: %d, %v", len(all), err)
	}
}

// TestFilesKeepTheNewest: only the newest ended Operations stay, with their logs, and numbers are
// not used again. Operations of other clusters stay.
func TestFilesKeepTheNewest(t *testing.T) {
	f := lifecycle.Files(t.TempDir())
	elm := ended(t, f, "elm").Name
	var names []string
	for range lifecycle.MaxEnded + 3 {
		name := ended(t, f, "oak").Name
		log, err := f.Log(name, "h-1")
		if err != nil {
			t.Fatal(err)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	next := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionApply}}
	if err := f.Create(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	kept := names[3:]
	ops, err := f.Operations(t.Context(), "oak")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, op := range ops {
		got = append(got, op.Name)
	}
	if d := cmp.Diff(append(slices.Clone(kept), "oak-14"), got); d != "" {
		t.Errorf("operations (-want +got):\n%s", d)
	}
	logs, err := os.ReadDir(f.Path("oak", "logs"))
	if err != nil {
		t.Fatal(err)
	}
	if len(logs) != len(kept) {
		t.Errorf("%d logs, want %d", len(logs), len(kept))
	}
	for _, name := range kept {
		if _, err := os.Stat(f.Path("oak", "logs", name, "h-1.log")); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.Operation(t.Context(), elm); err != nil {
		t.Error(err)
	}
}

// TestFilesHalfWritten: a process that is killed while it writes leaves a temporary file. The
// previous content is valid.
func TestFilesHalfWritten(t *testing.T) {
	f := lifecycle.Files(t.TempDir())
	op := ended(t, f, "oak")
	if err := f.Save(t.Context(), &lifecycle.State{Cluster: "oak", Keys: pki.Bundle{"ca": {Cert: []byte("cert")}}}); err != nil {
		t.Fatal(err)
	}
	for _, half := range []string{f.Path("oak", ".state.json.orrery-new"), f.Path("oak", "operations", "."+op.Name+".yaml.orrery-new")} {
		if err := os.WriteFile(half, []byte(`{"clus`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := f.Load(t.Context(), "oak")
	if err != nil || string(s.Keys["ca"].Cert) != "cert" {
		t.Errorf("state: %+v, %v", s, err)
	}
	ops, err := f.Operations(t.Context(), "oak")
	if err != nil || len(ops) != 1 || ops[0].Status.Phase != lifecyclev1alpha1.PhaseSucceeded {
		t.Errorf("operations: %+v, %v", ops, err)
	}
	if next := ended(t, f, "oak"); next.Name != "oak-2" {
		t.Errorf("the next operation is %s", next.Name)
	}
}

// TestFilesWriteFails: a failed write leaves no temporary file and keeps the previous content.
func TestFilesWriteFails(t *testing.T) {
	f := lifecycle.Files(t.TempDir())
	if err := os.MkdirAll(f.Path("oak", "state.json", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(t.Context(), &lifecycle.State{Cluster: "oak"}); err == nil || !strings.Contains(err.Error(), "cluster oak") {
		t.Errorf("save: %v", err)
	}
	entries, err := os.ReadDir(f.Path("oak"))
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == ".state.lock" })
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestFilesArePrivate: only the owner can read the files, because the state has the keys of the
// cluster.
func TestFilesArePrivate(t *testing.T) {
	f := lifecycle.Files(filepath.Join(t.TempDir(), "clusters"))
	op := ended(t, f, "oak")
	if err := f.Save(t.Context(), &lifecycle.State{Cluster: "oak"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.SaveKubeconfig("oak", []byte("kubeconfig")); err != nil {
		t.Fatal(err)
	}
	log, err := f.Log(op.Name, "h-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	err = filepath.Walk(string(f), func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFilesTogether: processes that record and processes that pause lose no writes of each other.
func TestFilesTogether(t *testing.T) {
	f := lifecycle.Files(t.TempDir())
	op := ended(t, f, "oak")
	const writers, times = 4, 25
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for range times {
				if err := f.Control(t.Context(), op.Name, func(s *lifecyclev1alpha1.OperationSpec) { s.Attempts++ }); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			mine := op.DeepCopy()
			for n := range times {
				mine.Status.Message = fmt.Sprintf("%d of %d", n, i)
				if err := f.Record(t.Context(), mine); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	kept, err := f.Operation(t.Context(), op.Name)
	if err != nil {
		t.Fatal(err)
	}
	if kept.Spec.Attempts != writers*times {
		t.Errorf("%d of %d changes are kept", kept.Spec.Attempts, writers*times)
	}
	if want := fmt.Sprintf("%d of ", times-1); !strings.HasPrefix(kept.Status.Message, want) {
		t.Errorf("message %q", kept.Status.Message)
	}
}

func TestFilesErrors(t *testing.T) {
	f := lifecycle.Files(t.TempDir())
	op := ended(t, f, "oak")
	write := func(path, content string) string {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	state := write(f.Path("oak", "state.json"), `{"cluster": "oak", "keys`)
	record := write(f.Path("oak", "operations", op.Name+".yaml"), "status: [")
	unlock, err := f.Lock(t.Context(), "fir")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for name, tc := range map[string]struct {
		do   func() error
		want []string
	}{
		"DamagedState": {
			func() error { _, err := f.Load(t.Context(), "oak"); return err },
			[]string{"cluster oak", state, "restore it from a backup"},
		},
		"DamagedRecord": {
			func() error { _, err := f.Operation(t.Context(), op.Name); return err },
			[]string{record, "remove the file"},
		},
		"DamagedRecordInList": {
			func() error { _, err := f.Operations(t.Context(), "oak"); return err },
			[]string{record, "remove the file"},
		},
		"UnknownOperation": {
			func() error { _, err := f.Operation(t.Context(), "oak-7"); return err },
			[]string{`"oak-7"`, "orrery operation list"},
		},
		"UnknownOperationControlled": {
			func() error { return f.Control(t.Context(), "oak-7", func(*lifecyclev1alpha1.OperationSpec) {}) },
			[]string{`"oak-7"`, "orrery operation list"},
		},
		"Locked": {
			func() error { _, err := f.Lock(t.Context(), "fir"); return err },
			[]string{"cluster fir", "orrery operation list"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.do()
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q has no %q", err, want)
				}
			}
		})
	}
}
