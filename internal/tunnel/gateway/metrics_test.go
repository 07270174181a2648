package gateway_test

import (
	"errors"
	"net/http"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"orrery.dev/orrery/internal/tunnel"
)

// counted returns the value of a counter, or the count of a histogram, by its label if it has one.
func counted(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() != label {
				continue
			}
			if f.GetType() == dto.MetricType_HISTOGRAM {
				return float64(m.GetHistogram().GetSampleCount())
			}
			return m.GetCounter().GetValue()
		}
	}
	return 0
}

// TestMetrics: dials and refusals are counted by result.
func TestMetrics(t *testing.T) {
	type series struct{ name, label string }
	const dials, refused, duration = "orrery_tunnel_dials_total", "orrery_tunnel_refused_total", "orrery_tunnel_dial_duration_seconds"
	all := []series{{dials, "ok"}, {dials, "error"}, {duration, ""}, {refused, "Identity"}, {refused, "Protocol"}}
	before := map[series]float64{}
	for _, s := range all {
		before[s] = counted(t, s.name, s.label)
	}
	s := newSite(t)
	s.refuse("pine", errors.New("nobody knows it"))
	s.meet(t, s.agent("pine"))
	client := s.server.Client()
	response, err := client.Get("https://" + s.network.Address() + tunnel.Path)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("who is no agent gets %s", response.Status)
	}
	s.run(s.agent("oak"))
	if err := says(t, s.dial("oak"), "hello"); err != nil {
		t.Error(err)
	}
	if _, err := s.gateway.Dial(t.Context(), "oak", "etcd"); err == nil {
		t.Error("it dials anything")
	}
	for _, s := range all {
		if got := counted(t, s.name, s.label) - before[s]; got < 1 {
			t.Errorf("%s %s rose by %v", s.name, s.label, got)
		}
	}
}
