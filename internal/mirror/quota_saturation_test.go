package mirror

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/scheduler"
)

// largest is the largest quantity that int64 holds in units.
const largest = "9223372036854775807"

// TestQuotaSaturates counts replicas in a quota, near the limits of int64.
func TestQuotaSaturates(t *testing.T) {
	web := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	claim := func(cpu, memory string) *scheduler.Claim {
		return scheduler.NewClaim(&interpreter.Requirements{Kind: web, Namespace: "shop", Requests: corev1.ResourceList{
			"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory),
		}})
	}
	one := claim("1", "1")
	for name, tc := range map[string]struct {
		hard, used string
		taken      []scheduler.Taken
		want       int64
	}{
		"LimitIsLarge":       {hard: `"requests.memory": "` + largest + `"`, used: `"requests.memory": "5"`, want: math.MaxInt32},
		"LimitIsLargerCPU":   {hard: `"requests.cpu": "` + largest + `"`, used: `"requests.cpu": "1"`, want: math.MaxInt32},
		"LimitIsLargerUnits": {hard: `"requests.memory": "10E"`, used: `"requests.memory": "1"`, want: math.MaxInt32},
		"UsageIsLarger":      {hard: `"requests.memory": "7"`, used: `"requests.memory": "10E"`},
		"EachIsLarge": {
			hard: `"requests.memory": "7"`, used: `"requests.memory": "0"`,
			taken: []scheduler.Taken{{Claim: claim("1", largest), Replicas: 2}},
		},
		"EachIsLargerCPU": {
			hard: `"requests.cpu": "7"`, used: `"requests.cpu": "0"`,
			taken: []scheduler.Taken{{Claim: claim("10P", "1"), Replicas: 1}},
		},
		"ManyReplicas": {
			hard: `"requests.memory": "7"`, used: `"requests.memory": "0"`,
			taken: []scheduler.Taken{{Claim: claim("1", "8Gi"), Replicas: math.MaxInt32}},
		},
		"OneAfterAnother": {
			hard: `"requests.memory": "7"`, used: `"requests.memory": "0"`,
			taken: []scheduler.Taken{{Claim: claim("1", largest), Replicas: 1}, {Claim: claim("2", largest), Replicas: 1}, {Claim: claim("3", largest), Replicas: 1}},
		},
		"ExactlyFilled": {
			hard: `"requests.memory": "` + largest + `"`, used: `"requests.memory": "0"`,
			taken: []scheduler.Taken{{Claim: claim("1", "9223372036854775804"), Replicas: 1}}, want: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := newQuota("q", []byte(`{"status": {"hard": {`+tc.hard+`}, "used": {`+tc.used+`}}}`))
			if err != nil {
				t.Fatal(err)
			}
			before := q.fits(one, true)
			rest := q
			for _, taken := range tc.taken {
				rest = rest.without(taken)
			}
			if got := rest.fits(one, true); got != tc.want {
				t.Errorf("%d fit, want %d", got, tc.want)
			}
			if got := q.fits(one, true); got != before {
				t.Errorf("%d fit in the quota before, want %d", got, before)
			}
		})
	}
}

// TestQuotaAddsAndSubtractsAlike: sets adds the amounts of a set, and without subtracts them. At
// the limits of int64 they agree on whether the set fits.
func TestQuotaAddsAndSubtractsAlike(t *testing.T) {
	for _, hard := range []string{"1", "8Gi", "4611686018427387904", largest, "10E"} {
		for _, each := range []string{"1", "8Gi", "4611686018427387904", largest, "10E"} {
			for _, replicas := range []int64{1, 2, math.MaxInt32} {
				q, err := newQuota("q", []byte(`{"status": {"hard": {"requests.memory": "`+hard+`"}, "used": {"requests.memory": "0"}}}`))
				if err != nil {
					t.Fatal(err)
				}
				claim := requesting(corev1.ResourceList{"memory": resource.MustParse(each)})
				fits := q.sets([]scheduler.Component{{Name: "c", Claim: claim, Replicas: replicas}}, true) > 0
				left := q.without(scheduler.Taken{Claim: claim, Replicas: replicas}).left["requests.memory"]
				if fits != (left >= 0) {
					t.Errorf("%d replicas of %s in %s: they fit: %t, and %d is left", replicas, each, hard, fits, left)
				}
			}
		}
	}
}

// TestCapacityOfLargePods: pods whose sum int64 cannot hold use all that a node has. After they end
// the capacity is as before.
func TestCapacityOfLargePods(t *testing.T) {
	c := newCapacity()
	setUp(t, c, nodes, "n", `{"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]}}`)
	claim := requesting(corev1.ResourceList{"memory": resource.MustParse("1Gi")})
	fit := func(what string, want int64) {
		t.Helper()
		if got, _ := c.measure().Fits(claim, true); got != want {
			t.Errorf("%s: %d fit, want %d", what, got, want)
		}
	}
	large := func(node string) string {
		return `{"spec": {"nodeName": "` + node + `", "containers": [{"resources": {"requests": {"memory": "` + largest + `"}}}]}}`
	}
	fit("before", 4)
	for _, name := range []string{"p1", "p2", "p3"} {
		setUp(t, c, pods, name, large("n"))
		setUp(t, c, pods, name+"-pending", large(""))
		fit(name+" was added", 0)
		for what, total := range map[string]sums{"allocated": c.allocated, "allocating": c.allocating} {
			if list := total.list(); list.Memory().Value() != math.MaxInt64 {
				t.Errorf("%s was added: %s are %s", name, what, list.Memory())
			}
		}
	}
	for _, name := range []string{"p1", "p2"} {
		c.setPod(key{"shop", name}, nil)
		c.setPod(key{"shop", name + "-pending"}, nil)
		fit(name+" was deleted", 0)
	}
	if list := c.allocated.list(); list.Memory().Value() != math.MaxInt64 || list.Pods().Value() != 1 {
		t.Errorf("one is left: allocated %v", list)
	}
	c.setPod(key{"shop", "p3"}, nil)
	c.setPod(key{"shop", "p3-pending"}, nil)
	fit("after", 4)
	if len(c.allocated)+len(c.allocating)+len(c.used) > 0 {
		t.Errorf("after: allocated %v, allocating %v, used %v", c.allocated, c.allocating, c.used)
	}
}

// TestSaturatingArithmetic compares times, plus, minus and sum with their results at the limits.
func TestSaturatingArithmetic(t *testing.T) {
	const most, least = math.MaxInt64, math.MinInt64
	for _, tc := range []struct{ a, b, times, plus, minus int64 }{
		{0, least, 0, least, most},
		{1, most, most, most, -most + 1},
		{most, most, most, most, 0},
		{most, 2, most, most, most - 2},
		{most, -1, -most, most - 1, most},
		{least, -1, most, least, least + 1},
		{-1, least, most, least, most},
		{least, 2, least, least + 2, least},
		{least, least, most, least, 0},
		{most, least, least, -1, most},
		{1 << 32, 1 << 31, most, 1<<32 + 1<<31, 1 << 31},
		{3, -4, -12, -1, 7},
	} {
		if times, plus, minus := times(tc.a, tc.b), plus(tc.a, tc.b), minus(tc.a, tc.b); times != tc.times || plus != tc.plus || minus != tc.minus {
			t.Errorf("%d and %d: times %d, plus %d, minus %d; want %d, %d, %d", tc.a, tc.b, times, plus, minus, tc.times, tc.plus, tc.minus)
		}
		both := sum{}.add(tc.a).add(tc.b)
		if both.value() != tc.plus || both.remove(tc.b).value() != tc.a || both.remove(tc.b).remove(tc.a) != (sum{}) {
			t.Errorf("the sum of %d and %d is %d, less the second %d", tc.a, tc.b, both.value(), both.remove(tc.b).value())
		}
	}
}
