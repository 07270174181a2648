package records

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"
)

// start opens the records in a directory and runs them until stop, or until the test ends.
func start(t testing.TB, dir string, log logr.Logger, change ...func(*Records)) (r *Records, stop func()) {
	t.Helper()
	r, err := Open(t.Context(), dir, log)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(r)
	}
	return r, run(t, r)
}

func run(t testing.TB, r *Records) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := errors.Join(<-ended, r.Close()); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func flush(t testing.TB, r *Records) {
	t.Helper()
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// logged returns a logger and its output.
func logged() (logr.Logger, *strings.Builder) {
	out := &strings.Builder{}
	return funcr.New(func(prefix, args string) { fmt.Fprintln(out, prefix, args) }, funcr.Options{}), out
}

func value(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123e6, time.UTC)

func decision(change ...func(*Decision)) Decision {
	d := Decision{
		Binding:  "binding",
		Template: Template{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "cart", UID: "cart", Generation: 4},
		Time:     noon, Snapshot: 77,
		Claimed: Policy{"PropagationPolicy", "shop", "everywhere", 3}, PlacementHash: "5d41402abc",
		Lost:      []Policy{{"ClusterPropagationPolicy", "", "z", 1}, {"ClusterPropagationPolicy", "", "a", 2}},
		Overrides: []Policy{{"OverridePolicy", "shop", "images", 9}},
		Reason:    "Scheduled", Message: "5 replicas in 2 clusters",
		Replicas: new(int32(5)), Divided: true,
		Targets:   []Target{{"birch", new(int32(0))}, {"oak", new(int32(5))}},
		Evictions: []Target{{"elm", new(int32(2))}, {"fir", nil}},
		Verdicts: []Verdict{
			{"Affinity", "its labels are not selected", []string{"elm", "fir", "yew"}},
			{"Taint", "a", []string{"ash"}},
			{"Taint", "b", []string{"elm", "yew"}},
		},
	}
	for _, f := range change {
		f(&d)
	}
	return d
}

func decisionsOf(t testing.TB, r *Records, template types.UID, limit int) []Decision {
	t.Helper()
	got, err := r.Decisions(t.Context(), template, limit)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestDecisionSurvives(t *testing.T) {
	many := decision(func(d *Decision) {
		d.Targets, d.Verdicts = nil, []Verdict{{Reason: "A"}, {Reason: "B"}, {Reason: "C"}}
		for i := range 1000 {
			name := fmt.Sprintf("cluster-%04d", i)
			if i%50 == 0 {
				d.Targets = append(d.Targets, Target{name, new(int32(i))})
			} else {
				v := &d.Verdicts[i*i%7%3]
				v.Clusters = append(v.Clusters, name)
			}
		}
	})
	cases := map[string]Decision{
		"Whole":        decision(),
		"Bare":         {Template: Template{UID: "cart"}, Time: noon},
		"ManyClusters": many,
		"NegativeReplicas": decision(func(d *Decision) {
			d.Replicas, d.Targets = new(int32(-1)), []Target{{"a", new(int32(-2147483648))}, {"b", new(int32(2147483647))}}
		}),
		"OddText": decision(func(d *Decision) {
			d.Message, d.Verdicts[0].Message = "é'\"\x00\xff\n", "'; DROP TABLE decision; --"
		}),
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r, stop := start(t, dir, logr.Discard())
			r.Decided(want)
			flush(t, r)
			stop()
			r, _ = start(t, dir, logr.Discard())
			if diff := cmp.Diff([]Decision{want}, decisionsOf(t, r, "cart", 0)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDecisionIsKeptInOneOrder: another order of clusters and verdicts is no change.
func TestDecisionIsKeptInOneOrder(t *testing.T) {
	r, _ := start(t, t.TempDir(), logr.Discard())
	r.Decided(decision())
	flush(t, r)
	r.Decided(decision(func(d *Decision) {
		slices.Reverse(d.Targets)
		slices.Reverse(d.Evictions)
		slices.Reverse(d.Verdicts)
		slices.Reverse(d.Verdicts[2].Clusters)
	}))
	flush(t, r)
	if diff := cmp.Diff([]Decision{decision()}, decisionsOf(t, r, "cart", 0)); diff != "" {
		t.Error(diff)
	}
}

func TestDecisionIsStoredWhenItChanged(t *testing.T) {
	cases := map[string]struct {
		change func(*Decision)
		stored bool
	}{
		"Nothing":             {func(*Decision) {}, false},
		"Time":                {func(d *Decision) { d.Time = noon.Add(time.Hour) }, false},
		"Snapshot":            {func(d *Decision) { d.Snapshot++ }, false},
		"TemplateGeneration":  {func(d *Decision) { d.Template.Generation++ }, false},
		"PolicyGenerations":   {func(d *Decision) { d.Claimed.Generation++; d.Lost[0].Generation++; d.Overrides[0].Generation++ }, false},
		"Claimed":             {func(d *Decision) { d.Claimed.Name = "other" }, true},
		"Lost":                {func(d *Decision) { d.Lost = d.Lost[:1] }, true},
		"OrderOfLost":         {func(d *Decision) { slices.Reverse(d.Lost) }, true},
		"Overrides":           {func(d *Decision) { d.Overrides = nil }, true},
		"PlacementHash":       {func(d *Decision) { d.PlacementHash = "x" }, true},
		"Reason":              {func(d *Decision) { d.Reason = "NoFit" }, true},
		"Message":             {func(d *Decision) { d.Message = "x" }, true},
		"Replicas":            {func(d *Decision) { d.Replicas = new(int32(6)) }, true},
		"NoReplicas":          {func(d *Decision) { d.Replicas = nil }, true},
		"Divided":             {func(d *Decision) { d.Divided = false }, true},
		"Target":              {func(d *Decision) { d.Targets = d.Targets[:1] }, true},
		"Share":               {func(d *Decision) { d.Targets[0].Replicas = new(int32(1)) }, true},
		"Eviction":            {func(d *Decision) { d.Evictions = nil }, true},
		"VerdictOfOneCluster": {func(d *Decision) { d.Verdicts[0].Clusters[1] = "oak" }, true},
		"VerdictMessage":      {func(d *Decision) { d.Verdicts[1].Message = "ab" }, true},
		"NewBinding":          {func(d *Decision) { d.Binding = "another" }, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want := []Decision{decision()}
			if tc.stored {
				want = []Decision{decision(tc.change), decision()}
			}
			for _, batches := range []string{"InOneBatch", "InTwo", "AfterARestart"} {
				t.Run(batches, func(t *testing.T) {
					dir := t.TempDir()
					r, stop := start(t, dir, logr.Discard())
					r.Decided(decision())
					if batches != "InOneBatch" {
						flush(t, r)
					}
					if batches == "AfterARestart" {
						stop()
						r, _ = start(t, dir, logr.Discard())
					}
					r.Decided(decision(tc.change))
					flush(t, r)
					if diff := cmp.Diff(want, decisionsOf(t, r, "cart", 0)); diff != "" {
						t.Error(diff)
					}
				})
			}
		})
	}
}

func TestDecisionsAreTheNewestFirst(t *testing.T) {
	r, _ := start(t, t.TempDir(), logr.Discard())
	for i := range 5 {
		r.Decided(decision(func(d *Decision) { d.Message = fmt.Sprint(i) }))
		r.Decided(decision(func(d *Decision) { d.Template.UID, d.Message = "other", fmt.Sprint(i) }))
	}
	// A return to an earlier decision is a change, too.
	r.Decided(decision(func(d *Decision) { d.Message = "0" }))
	flush(t, r)
	var got []string
	for _, d := range decisionsOf(t, r, "cart", 3) {
		got = append(got, d.Message)
	}
	if diff := cmp.Diff([]string{"0", "4", "3"}, got); diff != "" {
		t.Error(diff)
	}
	if n := len(decisionsOf(t, r, "cart", 0)) + len(decisionsOf(t, r, "other", -1)) + len(decisionsOf(t, r, "none", 0)); n != 11 {
		t.Errorf("%d decisions in all, want 11", n)
	}
}

func result(binding, cluster string) Result {
	return Result{
		Binding: types.UID(binding), Cluster: cluster, ClusterUID: types.UID("uid of " + cluster), Applied: true,
		Reason: "Applied", Message: "é'", Generation: 3, Template: "v7", Digest: "sha256:1", Fields: 1<<64 - 1, Time: noon,
	}
}

func allResults(t testing.TB, r *Records) (got []string) {
	t.Helper()
	for result, err := range r.AllResults(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(result.Binding)+"/"+result.Cluster)
	}
	slices.Sort(got)
	return got
}

func TestResults(t *testing.T) {
	dir := t.TempDir()
	r, stop := start(t, dir, logr.Discard())
	r.Applied(result("b", "west"), result("b", "east"), result("a", "east"))
	flush(t, r)
	failed := result("b", "west")
	failed.Applied, failed.Reason, failed.Time = false, "Conflict", noon.Add(time.Minute)
	r.Applied(failed)
	r.Applied(result("b", "north"), result("c", "east"))
	flush(t, r)
	stop()
	r, _ = start(t, dir, logr.Discard())
	got, err := r.Results(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Result{result("b", "east"), result("b", "north"), failed}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a/east", "b/east", "b/north", "b/west", "c/east"}, allResults(t, r)); diff != "" {
		t.Error(diff)
	}
}

func TestForget(t *testing.T) {
	all := []string{"a/east", "a/west", "b/east", "b/west"}
	cases := map[string]struct {
		act  func(*Records)
		want []string
	}{
		"Binding":           {func(r *Records) { r.ForgetBinding("a") }, all[2:]},
		"Cluster":           {func(r *Records) { r.ForgetCluster("east") }, []string{"a/west", "b/west"}},
		"UnknownCluster":    {func(r *Records) { r.ForgetCluster("none") }, all},
		"BindingComesAgain": {func(r *Records) { r.ForgetBinding("a"); r.Applied(result("a", "west")) }, all[1:]},
		"ClusterComesAgain": {func(r *Records) { r.ForgetCluster("east"); r.Applied(result("b", "east")) }, all[1:]},
		"BindingJustNow":    {func(r *Records) { r.Applied(result("c", "east")); r.ForgetBinding("c") }, all},
		"ClusterJustNow":    {func(r *Records) { r.Applied(result("a", "new"), result("c", "new")); r.ForgetCluster("new") }, all},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r, _ := start(t, t.TempDir(), logr.Discard())
			r.Applied(result("a", "east"), result("a", "west"), result("b", "east"), result("b", "west"))
			r.Decided(decision(func(d *Decision) { d.Binding = "a" }))
			flush(t, r)
			tc.act(r)
			flush(t, r)
			if diff := cmp.Diff(tc.want, allResults(t, r)); diff != "" {
				t.Error(diff)
			}
			if n := len(decisionsOf(t, r, "cart", 0)); n != 1 {
				t.Errorf("%d decisions, want the one of before", n)
			}
		})
	}
}

func TestAllResultsComeInPages(t *testing.T) {
	r, _ := start(t, t.TempDir(), logr.Discard())
	var want []string
	for i := range 2*chunk + chunk/2 {
		one := result(fmt.Sprintf("b%d", i/7), fmt.Sprintf("c%d", i%7))
		r.Applied(one)
		want = append(want, string(one.Binding)+"/"+one.Cluster)
	}
	flush(t, r)
	slices.Sort(want)
	if diff := cmp.Diff(want, allResults(t, r)); diff != "" {
		t.Error(diff)
	}
	// The caller uses the records in the loop, and leaves the loop early.
	for range r.AllResults(t.Context()) {
		r.Applied(result("b0", "c0"))
		flush(t, r)
		break
	}
}

func TestRevisions(t *testing.T) {
	dir := t.TempDir()
	r, stop := start(t, dir, logr.Discard())
	revision := func(template types.UID, number int64, change ...func(*Revision)) Revision {
		out := Revision{
			Template: template, Number: number, Hash: "h", Cause: "kubectl set image", Created: noon,
			Content: []byte(`{"spec":` + strings.Repeat(`"x",`, 1000) + `}`),
		}
		for _, f := range change {
			f(&out)
		}
		return out
	}
	put := func(rs ...Revision) {
		t.Helper()
		for _, one := range rs {
			if err := r.PutRevision(t.Context(), one); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(template types.UID, want ...Revision) {
		t.Helper()
		got, err := r.Revisions(t.Context(), template)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	again := revision("a", 2, func(r *Revision) { r.Cause, r.Content = "again", []byte("{}") })
	put(revision("a", 10), revision("a", 2), revision("a", 3), revision("b", 1), again)
	stop()
	r, _ = start(t, dir, logr.Discard())
	check("a", again, revision("a", 3), revision("a", 10))
	check("none")
	if err := r.DeleteRevisions(t.Context(), "a", 2, 10, 99); err != nil {
		t.Fatal(err)
	}
	check("a", revision("a", 3))
	if err := r.DeleteRevisions(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	check("a")
	check("b", revision("b", 1))
}

func TestStoppingWritesWhatIsLeft(t *testing.T) {
	dir := t.TempDir()
	r, stop := start(t, dir, logr.Discard())
	r.Decided(decision())
	r.Applied(result("a", "east"))
	stop()
	r.Applied(result("a", "late")) // ignored after the end, without a panic
	if _, err := r.Results(t.Context(), "a"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v after Close, want ErrUnavailable", err)
	}
	r, stop = start(t, dir, logr.Discard())
	if diff := cmp.Diff([]string{"a/east"}, allResults(t, r)); diff != "" || len(decisionsOf(t, r, "cart", 0)) != 1 {
		t.Error("results or decisions are lost:", diff)
	}
	stop()
	r, err := Open(t.Context(), dir, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	r.Applied(result("a", "west")) // from a controller that ends after Start
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ = start(t, dir, logr.Discard())
	if diff := cmp.Diff([]string{"a/east", "a/west"}, allResults(t, r)); diff != "" {
		t.Error(diff)
	}
}

// TestKilled reads the file and journal of a killed process.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	r, _ := start(t, dir, logr.Discard())
	for i := range 5 {
		r.Decided(decision(func(d *Decision) { d.Message = fmt.Sprint(i) }))
		r.Applied(result("a", fmt.Sprint(i)))
		flush(t, r)
		copied := t.TempDir()
		for _, name := range []string{"records.db", "records.db-wal"} {
			content, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			// A batch that was being written must be missing completely.
			content = append(content, make([]byte, 1000*i)...)
			if err := os.WriteFile(filepath.Join(copied, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		log, said := logged()
		c, stop := start(t, copied, log)
		if got := decisionsOf(t, c, "cart", 0); len(got) != i+1 || len(allResults(t, c)) != i+1 {
			t.Errorf("%d decisions, results %v, want %d of each", len(got), allResults(t, c), i+1)
		}
		stop()
		if said.Len() > 0 {
			t.Error(said)
		}
	}
}

func asides(t testing.TB, dir string) []string {
	t.Helper()
	got, err := filepath.Glob(filepath.Join(dir, "records.db.damaged-*Z"))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// filled writes a file of many pages, and closes it. The journal is folded into the file: two
// connections that close at the same moment may leave it, and SQLite would restore from it what a
// test damages.
func filled(t testing.TB, dir string) {
	t.Helper()
	r, stop := start(t, dir, logr.Discard())
	fill(r)
	flush(t, r)
	stop()
	alter(t, filepath.Join(dir, "records.db"), "PRAGMA wal_checkpoint(TRUNCATE)")
}

func fill(r *Records) {
	for i := range 2000 {
		r.Applied(result(fmt.Sprintf("old-%d", i), "east"))
	}
	r.Decided(decision())
}

// overwrite writes noise over a part of a file; from and to are percentages.
func overwrite(t testing.TB, path string, from, to int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, info.Size()*(to-from)/100)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(noise)
	for i := range noise {
		// No page begins with such a byte. SQLite, which has no checksums, would accept other
		// noise.
		noise[i] |= 0x80
	}
	if _, err := f.WriteAt(noise, info.Size()*from/100); err != nil {
		t.Fatal(err)
	}
}

// goesOn checks that damaged records accept, store and return new ones, and that the log says what
// happened.
func goesOn(t *testing.T, r *Records, dir string, said fmt.Stringer) {
	t.Helper()
	r.Decided(decision(func(d *Decision) { d.Template.UID = "new" }))
	r.Applied(result("new", "east"))
	flush(t, r)
	// Damage of some pages is found only when they are read. Then the new records are lost as well.
	for range r.AllResults(t.Context()) {
	}
	decisionsOf(t, r, "cart", 0)
	r.Decided(decision(func(d *Decision) { d.Template.UID = "new" }))
	r.Applied(result("new", "east"))
	flush(t, r)
	if n := len(decisionsOf(t, r, "new", 0)); n != 1 {
		t.Errorf("%d new decisions, want 1", n)
	}
	if diff := cmp.Diff([]string{"new/east"}, allResults(t, r)); diff != "" {
		t.Error(diff)
	}
	if got := asides(t, dir); len(got) != 1 {
		t.Errorf("set aside: %v, want one file", got)
	} else if !strings.Contains(said.String(), filepath.Base(got[0])) {
		t.Errorf("the log does not name %s: %s", got[0], said)
	}
	if err := r.Problem(); err != nil {
		t.Error(err)
	}
}

func TestDamagedAtOpen(t *testing.T) {
	cases := map[string]func(t *testing.T, path string){
		"NoDatabase": func(t *testing.T, path string) { overwrite(t, path, 0, 100) },
		"Header":     func(t *testing.T, path string) { overwrite(t, path, 0, 2) },
		"Middle":     func(t *testing.T, path string) { overwrite(t, path, 20, 80) },
		"End":        func(t *testing.T, path string) { overwrite(t, path, 1, 100) },
		"Truncated": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, info.Size()/2); err != nil {
				t.Fatal(err)
			}
		},
		"Stub": func(t *testing.T, path string) {
			if err := os.Truncate(path, 50); err != nil {
				t.Fatal(err)
			}
		},
		"OtherSchema": func(t *testing.T, path string) { alter(t, path, "ALTER TABLE result RENAME TO other") },
		"NoTables": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			alter(t, path, "CREATE TABLE decision (x); PRAGMA user_version = 1")
		},
		"HalfMade": func(t *testing.T, path string) { alter(t, path, "PRAGMA user_version = 0") },
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			filled(t, dir)
			damage(t, filepath.Join(dir, "records.db"))
			before := value(t, setAside)
			log, said := logged()
			r, _ := start(t, dir, log)
			goesOn(t, r, dir, said)
			if n := value(t, setAside) - before; n != 1 {
				t.Errorf("orrery_records_set_aside_total grew by %v, want 1", n)
			}
		})
	}
}

// alter runs SQL on a file that is not open.
func alter(t testing.TB, path, script string) {
	t.Helper()
	db := connect(t, path)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), script); err != nil {
		t.Fatal(err)
	}
}

// connect opens another connection of this process to the file.
func connect(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: "vfs=unix-excl&_txlock=immediate&_pragma=busy_timeout(5000)"}).String())
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestDamagedWhileRunning(t *testing.T) {
	cases := map[string]func(t *testing.T, path string){
		"NoDatabase": func(t *testing.T, path string) { overwrite(t, path, 0, 100) },
		"Middle":     func(t *testing.T, path string) { overwrite(t, path, 20, 80) },
		"Truncated": func(t *testing.T, path string) {
			if err := os.Truncate(path, 8192); err != nil {
				t.Fatal(err)
			}
		},
		"Emptied": func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		},
		"Replaced": func(t *testing.T, path string) {
			if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log, said := logged()
			r, _ := start(t, dir, log)
			fill(r)
			flush(t, r)
			// All data is in the file, and none in the journal.
			if _, err := r.db.Write.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
				t.Fatal(err)
			}
			flushEmpty(t, r)
			damage(t, filepath.Join(dir, "records.db"))
			goesOn(t, r, dir, said)
		})
	}
	t.Run("Removed", func(t *testing.T) {
		dir := t.TempDir()
		log, said := logged()
		r, stop := start(t, dir, log)
		r.Applied(result("old", "east"))
		flush(t, r)
		if err := os.Remove(filepath.Join(dir, "records.db")); err != nil {
			t.Fatal(err)
		}
		r.Applied(result("new", "east"))
		flush(t, r)
		stop()
		r, _ = start(t, dir, log)
		if diff := cmp.Diff([]string{"new/east"}, allResults(t, r)); diff != "" {
			t.Error(diff)
		}
		if !strings.Contains(said.String(), "was removed") {
			t.Errorf("not said: %s", said)
		}
	})
}

// flushEmpty makes the writer check the file as it is.
func flushEmpty(t testing.TB, r *Records) {
	t.Helper()
	r.ForgetBinding("none")
	flush(t, r)
}

func TestNewerIsRefused(t *testing.T) {
	dir := t.TempDir()
	filled(t, dir)
	alter(t, filepath.Join(dir, "records.db"), fmt.Sprintf("PRAGMA user_version = %d", len(schema)+1))
	before, err := os.ReadFile(filepath.Join(dir, "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), dir, logr.Discard())
	if !errors.Is(err, ErrNewer) {
		t.Fatalf("%v, want ErrNewer", err)
	}
	if !strings.Contains(err.Error(), "use that version, or move the file away") || !strings.Contains(err.Error(), dir) {
		t.Errorf("%q does not name the file and the way out", err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "records.db")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed: %v", err)
	}
}

func TestNoDirectory(t *testing.T) {
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "none"), logr.Discard()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want ErrNotExist", err)
	}
}

// TestMigration migrates a file of schema 1, with everything that it can hold, to the present
// schema and one further.
func TestMigration(t *testing.T) {
	dir := t.TempDir()
	old, err := open(t.Context(), dir, logr.Discard(), schema[:1])
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, old)
	old.Decided(decision())
	old.Applied(result("a", "east"))
	revision := Revision{Template: "cart", Number: 1, Content: []byte("{}"), Created: noon}
	if err := old.PutRevision(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	stop()
	for _, steps := range [][]string{schema, append(slices.Clone(schema), "ALTER TABLE word ADD COLUMN note TEXT; UPDATE word SET note = text")} {
		r, err := open(t.Context(), dir, logr.Discard(), steps)
		if err != nil {
			t.Fatal(err)
		}
		stop := run(t, r)
		if diff := cmp.Diff([]Decision{decision()}, decisionsOf(t, r, "cart", 0)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"a/east"}, allResults(t, r)); diff != "" {
			t.Error(diff)
		}
		if got, err := r.Revisions(t.Context(), "cart"); err != nil || !cmp.Equal([]Revision{revision}, got) {
			t.Errorf("revisions %v, %v", got, err)
		}
		stop()
	}
	if _, err := Open(t.Context(), dir, logr.Discard()); !errors.Is(err, ErrNewer) {
		t.Errorf("%v after a step that this version does not have, want ErrNewer", err)
	}
}

// TestSecondProcess: one process at a time has the file.
func TestSecondProcess(t *testing.T) {
	if dir := os.Getenv("RECORDS_TEST_SECOND"); dir != "" {
		_, err := Open(t.Context(), dir, logr.Discard())
		fmt.Printf("opened: %t %v\n", errors.Is(err, ErrInUse), err)
		return
	}
	dir := t.TempDir()
	r, stop := start(t, dir, logr.Discard())
	r.Applied(result("a", "east"))
	flush(t, r)
	second := func() string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSecondProcess$")
		cmd.Env = append(os.Environ(), "RECORDS_TEST_SECOND="+dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := second(); !strings.Contains(got, "opened: true") || !strings.Contains(got, "stop the other one") {
		t.Errorf("%q, want ErrInUse and the way out", got)
	}
	flushEmpty(t, r)
	if diff := cmp.Diff([]string{"a/east"}, allResults(t, r)); diff != "" || len(asides(t, dir)) > 0 {
		t.Error("the first one was disturbed:", diff)
	}
	stop()
	if got := second(); !strings.Contains(got, "opened: false <nil>") {
		t.Errorf("%q after the first one ended", got)
	}
}

// inBubble runs a test with the time of a synctest bubble.
func inBubble(t *testing.T, f func(t *testing.T, dir string)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { f(t, dir) })
}

func TestFullDisk(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		log, said := logged()
		r, _ := start(t, dir, log)
		r.Applied(result("first", "east"))
		flush(t, r)
		limit := func(pages int) {
			t.Helper()
			if err := r.db.Write.QueryRowContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages)).Scan(&pages); err != nil {
				t.Fatal(err)
			}
		}
		limit(20)
		fill(r)
		time.Sleep(10 * retryEvery)
		synctest.Wait()
		if err := r.Problem(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("problem %v, want that there is no space", err)
		}
		if n := strings.Count(said.String(), "cannot be written"); n != 1 {
			t.Errorf("said %d times, want once: %s", n, said)
		}
		if diff := cmp.Diff([]string{"first/east"}, allResults(t, r)); diff != "" {
			t.Error("what was there before:", diff)
		}
		limit(1 << 20)
		flush(t, r)
		if n := len(allResults(t, r)); n != 2001 || r.Problem() != nil || len(decisionsOf(t, r, "cart", 0)) != 1 {
			t.Errorf("%d results, problem %v after there was room again", n, r.Problem())
		}
		if !strings.Contains(said.String(), "written again") {
			t.Errorf("it does not say that it goes on: %s", said)
		}
	})
}

// TestNoFileAtOpen: a file that cannot be opened now is no error, and is opened later.
func TestNoFileAtOpen(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "records.db")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		r, _ := start(t, dir, logr.Discard())
		r.Applied(result("a", "east"))
		time.Sleep(3 * retryEvery)
		synctest.Wait()
		if err := r.Problem(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("problem %v, want ErrUnavailable", err)
		}
		if _, err := r.Results(t.Context(), "a"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		if err := r.PutRevision(t.Context(), Revision{}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		for _, err := range r.AllResults(t.Context()) {
			if !errors.Is(err, ErrUnavailable) {
				t.Errorf("%v, want ErrUnavailable", err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		flush(t, r)
		if diff := cmp.Diff([]string{"a/east"}, allResults(t, r)); diff != "" || r.Problem() != nil {
			t.Error(diff, r.Problem())
		}
	})
}

// TestLocked: while another process locks the database, callers do not wait. Afterwards the last
// results are stored, and the oldest decisions are dropped if there were too many.
func TestLocked(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		log, said := logged()
		const capacity = 50
		r, _ := start(t, dir, log, func(r *Records) { r.maxPending = capacity * memory(decision()) })
		other := connect(t, filepath.Join(dir, "records.db"))
		defer other.Close()
		tx, err := other.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Applied(result("a", "east"))
		time.Sleep(2 * retryEvery)
		synctest.Wait()
		if err := r.Problem(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "locked") {
			t.Errorf("problem %v, want that it is locked", err)
		}
		before := value(t, decisions.WithLabelValues(discarded))
		began := time.Now()
		for i := range 10 * capacity {
			r.Decided(decision(func(d *Decision) { d.Message = fmt.Sprint(100 + i) }))
			// The decision is unchanged.
			r.Decided(decision(func(d *Decision) { d.Message, d.Snapshot = fmt.Sprint(100+i), uint64(i) }))
			one := result("a", "east")
			one.Generation = int64(i)
			r.Applied(one)
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("callers waited %v", waited)
		}
		if n := value(t, decisions.WithLabelValues(discarded)) - before; n < 9*capacity || n > 10*capacity {
			t.Errorf("%v decisions are counted as dropped, want about %d", n, 9*capacity)
		}
		if err := r.PutRevision(t.Context(), Revision{Template: "cart", Number: 1}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		flush(t, r)
		got := decisionsOf(t, r, "cart", 0)
		if len(got) < capacity/2 || len(got) > capacity || got[0].Message != fmt.Sprint(99+10*capacity) {
			t.Errorf("%d decisions, the last is %q; want the last %d", len(got), got[0].Message, capacity)
		}
		results, err := r.Results(t.Context(), "a")
		if err != nil || len(results) != 1 || results[0].Generation != 10*capacity-1 {
			t.Errorf("results %v, %v", results, err)
		}
		if r.Problem() != nil || strings.Count(said.String(), "cannot be written") != 1 {
			t.Errorf("problem %v, said: %s", r.Problem(), said)
		}
	})
}

// TestFlushEndsWithItsContext: the error says why nothing is written.
func TestFlushEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		if err := os.Mkdir(filepath.Join(dir, "records.db"), 0o700); err != nil {
			t.Fatal(err)
		}
		r, _ := start(t, dir, logr.Discard())
		r.Applied(result("a", "east"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v, want the deadline and the reason", err)
		}
	})
}

func TestOldDecisionsGo(t *testing.T) {
	const keepFor = 10 * 24 * time.Hour
	inBubble(t, func(t *testing.T, dir string) { // the bubble's time begins in 2000
		r, _ := start(t, dir, logr.Discard(), func(r *Records) { r.keepFor = keepFor })
		began := time.Now()
		decide := func(n int) {
			for i := range n {
				r.Decided(decision(func(d *Decision) { d.Time, d.Message = time.Now(), fmt.Sprint(i, time.Now()) }))
			}
			flush(t, r)
		}
		decide(2 * chunk)
		r.Applied(result("a", "east"))
		time.Sleep(keepFor / 2)
		decide(10)
		time.Sleep(time.Until(began.Add(keepFor + 2*pruneEvery)))
		synctest.Wait()
		got := decisionsOf(t, r, "cart", 0)
		if len(got) != 10 {
			t.Errorf("%d decisions, want the 10 that are young enough", len(got))
		}
		if len(allResults(t, r)) != 1 {
			t.Error("a result went with them")
		}
		time.Sleep(keepFor)
		synctest.Wait()
		if n := len(decisionsOf(t, r, "cart", 0)); n != 0 {
			t.Errorf("%d decisions after as long again", n)
		}
		var words int
		if err := r.db.Read.QueryRowContext(t.Context(), "SELECT count(*) FROM word").Scan(&words); err != nil || words != 0 {
			t.Errorf("%d words are left of them, %v", words, err)
		}
		r.Decided(decision())
		flush(t, r)
		if diff := cmp.Diff([]Decision{decision()}, decisionsOf(t, r, "cart", 0)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestTooManyDecisionsGo(t *testing.T) {
	inBubble(t, func(t *testing.T, dir string) {
		const limit = 200_000
		r, _ := start(t, dir, logr.Discard(), func(r *Records) { r.keepBytes = limit })
		for i := range 8000 {
			r.Decided(decision(func(d *Decision) { d.Time, d.Replicas = time.Now(), new(int32(i)) }))
		}
		flush(t, r)
		time.Sleep(2 * pruneEvery)
		synctest.Wait()
		got := decisionsOf(t, r, "cart", 0)
		if len(got) == 0 || *got[0].Replicas != 7999 {
			t.Fatalf("%d decisions; the last must be there", len(got))
		}
		var pages, free int
		if err := errors.Join(r.db.Write.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages),
			r.db.Write.QueryRowContext(t.Context(), "PRAGMA freelist_count").Scan(&free)); err != nil {
			t.Fatal(err)
		}
		if used := (pages - free) * 4096; used < limit/2 || used > limit*3/2 {
			t.Errorf("%d bytes are used, want about %d", used, limit)
		}
	})
}

// A year of decisions must fit keepBytes: templates × perYear decisions.
const (
	templates = 5000
	perYear   = 365 // how often the decision on one template changes
)

// scattered returns a decision of the largest kind: 20 of 1,000 clusters are chosen, and three
// filters reject the others in random order.
func scattered(random *rand.Rand, template, n int) Decision {
	return decision(func(d *Decision) {
		uid := fmt.Sprintf("1b4e28ba-2fa1-11d2-883f-%012d", template)
		d.Template.UID, d.Template.Name, d.Binding = types.UID(uid), fmt.Sprintf("web-%d", template), types.UID("b"+uid)
		d.Time = noon.Add(time.Duration(n) * time.Hour)
		d.Snapshot = uint64(1e6 + n)
		d.Message = fmt.Sprintf("%d replicas in 20 clusters", 20+random.IntN(300))
		d.Targets, d.Evictions = nil, nil
		d.Verdicts = []Verdict{
			{Reason: "Affinity", Message: "its labels are not selected by spec.placement.clusterAffinity"},
			{Reason: "Taint", Message: "it has a taint that is not tolerated: maintenance=yes:NoSchedule"},
			{Reason: "Capacity", Message: "it has no room for a replica"},
		}
		order := random.Perm(1000)
		for i, c := range order {
			name := fmt.Sprintf("cluster-%04d", c)
			if i < 20 {
				d.Targets = append(d.Targets, Target{name, new(int32(random.IntN(300)))})
			} else {
				v := &d.Verdicts[i%3]
				v.Clusters = append(v.Clusters, name)
			}
		}
	})
}

// TestYearFits measures the bytes on disk for each decision, with all overhead.
func TestYearFits(t *testing.T) {
	dir := t.TempDir()
	r, stop := start(t, dir, logr.Discard())
	random := rand.New(rand.NewPCG(1, 2))
	// So many that the size of the clusters' names hardly matters.
	const n, of = 2000, 25
	for i := range n {
		r.Decided(scattered(random, i%of, i))
	}
	flush(t, r)
	for template := range of {
		uid := scattered(random, template, 0).Template.UID
		if got := len(decisionsOf(t, r, uid, 0)); got != n/of {
			t.Fatalf("%d decisions on %s, want %d", got, uid, n/of)
		}
	}
	stop()
	info, err := os.Stat(filepath.Join(dir, "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	each := info.Size() / n
	t.Logf("%d bytes for each decision: %d for each template fit %d bytes", each, keepBytes/templates/each, int64(keepBytes))
	if allowed := int64(keepBytes) / templates / perYear * 3 / 4; each > allowed {
		t.Errorf("%d bytes for each decision, want at most %d: three quarters of what a year of %d decisions on each of %d templates may take",
			each, allowed, perYear, templates)
	}
}

func BenchmarkDecided(b *testing.B) {
	for name, changed := range map[string]bool{"Changed": true, "Unchanged": false} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			r, stop := start(b, dir, logr.Discard(), func(r *Records) { r.maxPending = 1 << 30 })
			random := rand.New(rand.NewPCG(1, 2))
			var ds [500]Decision
			for i := range ds {
				ds[i] = scattered(random, i, 0)
				r.Decided(ds[i])
			}
			flush(b, r)
			n := 0
			for b.Loop() {
				d := ds[n%len(ds)]
				if n++; changed {
					d.Message = fmt.Sprint(n)
				}
				r.Decided(d)
				if n%len(ds) == 0 {
					flush(b, r)
				}
			}
			flush(b, r)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			if stop(); changed {
				info, err := os.Stat(filepath.Join(dir, "records.db"))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(info.Size())/float64(b.N+len(ds)), "B/decision")
			}
		})
	}
}
