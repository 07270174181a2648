package enrollment

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkRevocation measures how long a connection of an agent stays open after orrery cluster
// rejoin --replace revokes its key.
func BenchmarkRevocation(b *testing.B) {
	s := newSite(b)
	c := s.cluster("oak")
	var took []time.Duration
	for b.Loop() {
		a := s.agent("oak")
		a.redeem(s.token("oak"))
		a.run()
		open := s.dial("oak")
		start := time.Now()
		s.replace("oak")
		if _, err := open.Read(make([]byte, 1)); err == nil {
			b.Fatal("bytes that nobody sent")
		}
		took = append(took, time.Since(start))
	}
	s.remove(c)
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1e3, "max-ms")
}
