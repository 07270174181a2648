package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// TestMirrorIsDamaged damages the files of the mirror, of a running server and of a stopped
// one. The mirror is a cache: the hub starts, places and answers as without the damage.
func TestMirrorIsDamaged(t *testing.T) {
	testenv.Rotate(t, 3, "TestMirrorIsDamaged", "TestRecordsAreLost", "TestWorkGoesOnAfterAnOutageOfTheHub")
	noise := bytes.Repeat([]byte("noise, not a database. "), 1<<10)
	write := func(from, length float64) func(string) error {
		return func(file string) error {
			f, err := os.OpenFile(file, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			info, err := f.Stat()
			if err != nil {
				return errors.Join(err, f.Close())
			}
			size := float64(info.Size())
			for at := int64(size * from); at < int64(size*(from+length)) && err == nil; at += int64(len(noise)) {
				_, err = f.WriteAt(noise[:min(int64(len(noise)), int64(size*(from+length))-at)], at)
			}
			return errors.Join(err, f.Close())
		}
	}
	truncate := func(part float64) func(string) error {
		return func(file string) error {
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			return os.Truncate(file, int64(float64(info.Size())*part))
		}
	}
	for _, tc := range testenv.Sample(t, 3, []struct {
		name    string
		file    string // the suffix of the damaged file
		running bool
		damage  func(file string) error
	}{
		{"NoiseInTheMiddle", ".db", false, write(1.0/3, 1.0/3)},
		{"Noise", ".db", false, write(0, 1)},
		{"NoiseAfterTheHeader", ".db", false, write(0.01, 0.99)},
		{"HalfAFile", ".db", false, truncate(0.5)},
		{"RunningNoiseInTheMiddle", ".db", true, write(1.0/3, 1.0/3)},
		{"RunningTruncated", ".db", true, truncate(0.5)},
		{"RunningEmptied", ".db", true, truncate(0)},
		{"RunningLogTruncated", ".db-wal", true, truncate(0.5)},
		{"RunningRemoved", ".db", true, os.Remove},
	}) {
		t.Run(tc.name, func(t *testing.T) {
			w := spine.Start(t, "mirror-"+spine.Lower(tc.name))
			w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"))+spine.ConfigMap(w.Namespace, "before", "one")+spine.Deployment(w.Namespace, "web", 1))
			w.Available(w.Oak, "web", 1)
			w.Placed(w.Oak, "v1", "ConfigMap", "before")
			before := w.Content(w.Oak)
			files, err := filepath.Glob(filepath.Join(w.Hub.Dir, "mirror", "*"+tc.file))
			if err != nil || len(files) == 0 {
				t.Fatalf("no file of the mirror ends in %s: %v", tc.file, err)
			}
			t.Cleanup(func() {
				if t.Failed() { // other tests need a mirror
					w.Hub.Kill()
					_ = os.RemoveAll(filepath.Join(w.Hub.Dir, "mirror"))
				}
			})
			if !tc.running {
				w.Must(w.Hub.Stop())
			}
			for _, f := range files {
				w.Must(tc.damage(f))
			}
			if !tc.running {
				w.Restart()
			}
			for i := range 5 {
				w.Hub.Apply(t, spine.ConfigMap(w.Namespace, fmt.Sprintf("after-%d", i), "one"))
			}
			for i := range 5 {
				w.Placed(w.Oak, "v1", "ConfigMap", fmt.Sprintf("after-%d", i))
				w.Applied("ConfigMap", fmt.Sprintf("after-%d", i))
			}
			w.Hub.Remove(t, "v1", "ConfigMap", w.Namespace, "before")
			w.Gone(w.Oak, "v1", "ConfigMap", "before")
			if !w.Hub.Running() {
				t.Error("the server has ended")
			}
			delete(before, "ConfigMap/before")
			w.Stays(w.Oak, before)
			// Search is complete again without a restart.
			w.Eventually("the fleet shows what oak has", func() error {
				out, err := w.Hub.Kubectl("--context=fleet", "get", "configmaps", "-n", w.Namespace, "-o", "name")
				if err != nil {
					return err
				}
				for i := range 5 {
					if !bytes.Contains([]byte(out), fmt.Appendf(nil, "after-%d", i)) {
						return fmt.Errorf("it shows %s", out)
					}
				}
				return nil
			})
		})
	}
}

// TestRecordsAreLost removes the hub's records of its applies while it is stopped. Then the hub
// reads every copy once: it reverts what others changed meanwhile, and does not write to
// unchanged copies.
func TestRecordsAreLost(t *testing.T) {
	testenv.Rotate(t, 3, "TestMirrorIsDamaged", "TestRecordsAreLost", "TestWorkGoesOnAfterAnOutageOfTheHub")
	w := spine.Start(t, "records-lost")
	names := []string{"changed", "same", "extended"}
	w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"))+spine.Deployment(w.Namespace, "web", 1))
	for _, name := range names {
		w.Hub.Apply(t, spine.ConfigMap(w.Namespace, name, "one"))
	}
	for _, name := range names {
		w.Applied("ConfigMap", name)
	}
	w.Available(w.Oak, "web", 1)
	w.Applied("Deployment", "web")

	w.Must(w.Hub.Stop())
	w.Must(os.RemoveAll(filepath.Join(w.Hub.Dir, "records")))
	w.Oak.MergePatch(t, "v1", "ConfigMap", w.Namespace, "changed", `{"data":{"key":"drifted"}}`)
	w.Oak.MergePatch(t, "v1", "ConfigMap", w.Namespace, "extended", `{"data":{"others":"kept"}}`)
	mark := w.Oak.Mark()
	w.Restart()
	w.Data(w.Oak, "changed", "one")
	for _, name := range names {
		w.Applied("ConfigMap", name)
	}
	w.Applied("Deployment", "web")
	w.CaughtUp(0, w.Oak)
	var written []string
	for _, r := range spine.Once(w.WritesSince(w.Oak, mark), testenv.Write.Object) {
		written = append(written, r.Name)
	}
	if want := []string{"changed"}; !slices.Equal(written, want) {
		t.Errorf("written to were %v, want %v", written, want)
	}
	extended, _, err := unstructured.NestedStringMap(w.Placed(w.Oak, "v1", "ConfigMap", "extended").Object, "data")
	if want := map[string]string{"key": "one", "others": "kept"}; err != nil || !maps.Equal(extended, want) {
		t.Errorf("a copy to which others added data has %v (%v), want %v", extended, err, want)
	}
}

// TestWorkGoesOnAfterAnOutageOfTheHub keeps a process of the hub down until the retry delays of
// its clients have grown. hub.TestWorkGoesOnAfterOutages does the same with the API server
// alone, and limits the time until work goes on.
func TestWorkGoesOnAfterAnOutageOfTheHub(t *testing.T) {
	testenv.Rotate(t, 3, "TestMirrorIsDamaged", "TestRecordsAreLost", "TestWorkGoesOnAfterAnOutageOfTheHub")
	victims, outage := []string{"etcd"}, 8*time.Second
	if testenv.Soak() {
		victims, outage = []string{"kube-apiserver", "etcd"}, 20*time.Second
	}
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			w := spine.Start(t, "outage-"+victim)
			w.Hub.Apply(t, spine.Policy(w.Namespace, "all", spine.Everything, spine.In("oak"))+spine.ConfigMap(w.Namespace, "before", "one"))
			w.Placed(w.Oak, "v1", "ConfigMap", "before")
			try := func(manifests string) error {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				return w.Hub.TryApply(ctx, manifests)
			}
			var asked sync.WaitGroup
			ended := make(chan struct{})
			var failed atomic.Int64
			asked.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
					}
					if err := try(spine.ConfigMap(w.Namespace, "meanwhile", "one")); err != nil {
						failed.Add(1)
					}
				}
			})
			// The outage lasts until a request has failed: on a busy machine the first request
			// may be late.
			begin := time.Now()
			for time.Since(begin) < outage || failed.Load() == 0 && time.Since(begin) < spine.Patience {
				w.Must(w.Hub.Signal(victim, syscall.SIGKILL))
				time.Sleep(100 * time.Millisecond)
			}
			close(ended)
			asked.Wait()
			if failed.Load() == 0 {
				t.Fatalf("the hub was not down while its %s was killed", victim)
			}
			w.Eventually("the hub answers", func() error { return try(spine.ConfigMap(w.Namespace, "after", "one")) })
			w.Eventually("work goes on", func() error {
				_, err := w.Oak.Find(t.Context(), "v1", "ConfigMap", w.Namespace, "after")
				return err
			})
			// An object that existed before the outage is updated, too.
			w.Hub.Apply(t, spine.ConfigMap(w.Namespace, "before", "two"))
			w.Data(w.Oak, "before", "two")
		})
	}
}
