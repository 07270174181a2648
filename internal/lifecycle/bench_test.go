package lifecycle_test

import (
	"testing"
	"time"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
)

// BenchmarkHundredHosts measures a create, and an apply without changes, on 100 simulated hosts
// with a latency of 20 ms. It also reports round trips per host, and how often the control machine
// sends a file.
func BenchmarkHundredHosts(b *testing.B) {
	for b.Loop() {
		l := newLab(b, 100, 3)
		l.fleet.Latency = 20 * time.Millisecond
		start := time.Now()
		if _, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "create-s")
		trips, copies := 0, 0
		for _, h := range l.spec.Hosts {
			trips = max(trips, len(l.fleet.Commands(h.Name)))
		}
		for _, n := range l.fleet.Sent() {
			copies = max(copies, n)
		}
		b.ReportMetric(float64(trips), "trips/host")
		b.ReportMetric(float64(copies), "copies/digest")
		before := l.trees()
		l.fleet.Forget()
		start = time.Now()
		if _, err := l.run(lifecyclev1alpha1.ActionApply, l.spec); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(start).Seconds(), "noop-s")
		for name, tree := range l.trees() {
			if len(tree) != len(before[name]) {
				b.Errorf("host %s was changed", name)
			}
		}
	}
}
