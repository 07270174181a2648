package scheduler

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestAmount converts quantities, also those that int64 cannot hold.
func TestAmount(t *testing.T) {
	for name, tc := range map[string]struct {
		resource corev1.ResourceName
		quantity string
		want     int64
	}{
		"Memory":            {corev1.ResourceMemory, "1Gi", 1 << 30},
		"RoundedUp":         {corev1.ResourceMemory, "1500m", 2},
		"CPU":               {corev1.ResourceCPU, "1500m", 1500},
		"CPURoundedUp":      {corev1.ResourceCPU, "1u", 1},
		"RequestsCPU":       {corev1.ResourceRequestsCPU, "2", 2000},
		"LimitsCPU":         {corev1.ResourceLimitsCPU, "2", 2000},
		"LargestMemory":     {corev1.ResourceMemory, "9223372036854775807", math.MaxInt64},
		"LargerMemory":      {corev1.ResourceMemory, "10E", math.MaxInt64},
		"LargerMemoryExact": {corev1.ResourceMemory, "9223372036854775808", math.MaxInt64},
		"LargestCPU":        {corev1.ResourceCPU, "9223372036854775807m", math.MaxInt64},
		"LargerCPU":         {corev1.ResourceCPU, "10P", math.MaxInt64},
		"LargerCPUExact":    {corev1.ResourceCPU, "9223372036854775807", math.MaxInt64},
		"Negative":          {corev1.ResourceCPU, "-1", -1000},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Amount(tc.resource, resource.MustParse(tc.quantity)); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}
