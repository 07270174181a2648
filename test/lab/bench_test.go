package lab

import (
	"slices"
	"testing"
	"time"

	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/test/lab/site"
)

// BenchmarkOneHost measures a create on one host from the command to the node being ready, with the
// release files on the control machine, and to the end of the command.
func BenchmarkOneHost(b *testing.B) {
	for b.Loop() {
		s := newTestbed(b, 1)
		file := s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
		// This fetches the checksums. The first run of all fetches the files.
		s.Orrery("cluster", "plan", "-f", file)
		start := time.Now()
		s.Orrery("cluster", "create", "-f", file, "--yes")
		b.ReportMetric(time.Since(start).Seconds(), "create-s")
		op := s.Operation("oak-1")
		for _, step := range op.Status.Steps {
			if step.Host == "cluster" && step.ID == "nodes/ready" {
				b.ReportMetric(step.Finished.Sub(op.Status.Started.Time).Seconds(), "ready-s")
			}
		}
	}
}

// BenchmarkFiveHosts measures a create on three control planes and two workers: until etcd has
// a quorum and the API servers answer, and in total. It also measures an apply without changes,
// and two rolling changes: one restarts every API server and kubelet, one after another, the
// other every etcd.
func BenchmarkFiveHosts(b *testing.B) {
	for b.Loop() {
		s := newTestbed(b, 5)
		file := s.File(site.Layout{
			Hosts: s.Hosts(), ControlPlanes: []string{"host-1", "host-2", "host-3"}, Worker: []string{"host-4", "host-5"},
		})
		start := time.Now()
		s.Orrery("cluster", "create", "-f", file, "--yes")
		b.ReportMetric(time.Since(start).Seconds(), "create-s")
		op := s.Operation("oak-1")
		var staged, first, all time.Time
		for _, step := range op.Status.Steps {
			switch step.ID {
			case "etcd/unit":
				if staged.IsZero() || step.Started.Time.Before(staged) {
					staged = step.Started.Time
				}
			case "apiserver/probe":
				if first.IsZero() || step.Finished.Time.Before(first) {
					first = step.Finished.Time
				}
				if step.Finished.After(all) {
					all = step.Finished.Time
				}
			}
		}
		b.ReportMetric(first.Sub(staged).Seconds(), "quorum-api-s")
		b.ReportMetric(all.Sub(staged).Seconds(), "all-apis-s")
		before := s.snapshots()
		var took []float64
		for range 5 {
			start = time.Now()
			s.Orrery("cluster", "apply", "-f", file, "--yes")
			took = append(took, time.Since(start).Seconds())
		}
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2], "noop-s")
		for name, snap := range before {
			if d := filesOnly(lab.Diff(snap, s.snapshot(s.Host(name)))); d != "" {
				b.Errorf("host %s was changed:\n%s", name, d)
			}
		}
		var trips int32
		for _, h := range op.Status.Hosts {
			trips = max(trips, h.RoundTrips)
		}
		b.ReportMetric(float64(trips), "trips/host")
		for _, change := range []struct{ kubernetes, extra, metric string }{
			{"maxPods: 90\n      apiserverArgs: [max-requests-inflight=500]", "", "rolled-s"},
			{"maxPods: 90\n      apiserverArgs: [max-requests-inflight=500]", "    etcd: {snapshotCount: 20000}\n", "rolled-etcd-s"},
		} {
			file = s.File(site.Layout{
				Hosts: s.Hosts(), ControlPlanes: []string{"host-1", "host-2", "host-3"}, Worker: []string{"host-4", "host-5"},
				Kubernetes: change.kubernetes, Extra: change.extra,
			})
			start = time.Now()
			s.Orrery("cluster", "apply", "-f", file, "--yes")
			b.ReportMetric(time.Since(start).Seconds(), change.metric)
		}
	}
}
