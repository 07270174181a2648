package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
)

// TestOrdered: keys are returned by priority and then in order of arrival, also if the priority of
// a waiting key changes.
func TestOrdered(t *testing.T) {
	priorities := map[string]int32{"high": 10, "higher": 20, "low": -5}
	var taken []string
	q := NewOrdered("", workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Second),
		func(key string) int32 { return priorities[key] }, func(key string) { taken = append(taken, key) })
	defer q.ShutDown()
	for _, key := range []string{"low", "a", "high", "b", "raised", "higher", "c", "lowered"} {
		q.Add(key)
	}
	priorities["raised"], priorities["lowered"] = 15, -10
	for _, key := range []string{"raised", "lowered", "a"} { // a waits, and keeps its place
		q.Add(key)
	}
	want := []string{"higher", "raised", "high", "a", "b", "c", "low", "lowered"}
	var got []string
	for range want {
		key, _ := q.Get()
		got = append(got, key)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("handed out (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, taken); diff != "" {
		t.Errorf("told of (-handed out +told):\n%s", diff)
	}
	// A key that is added while it is worked on is returned again after that.
	q.Add("higher")
	q.Add("d")
	q.Done("a")
	if key, _ := q.Get(); key != "d" {
		t.Errorf("%s was handed out while it is worked on", key)
	}
	q.Done("higher")
	if key, _ := q.Get(); key != "higher" {
		t.Errorf("handed out %s", key)
	}
}

// TestOrderedProperties: for random operations, the returned key is always the first of the waiting
// ones.
func TestOrderedProperties(t *testing.T) {
	d := rand.New(rand.NewPCG(1, 2))
	priorities := map[int]int32{}
	q := &ordered[int]{priority: func(key int) int32 { return priorities[key] }, taken: func(int) {}, waiting: map[int]*waiting[int]{}}
	var model []int // that wait, in the order in which they came
	for step := range 20000 {
		switch key := d.IntN(200); {
		case d.IntN(3) == 0 && len(model) > 0:
			first := model[0]
			for _, k := range model {
				if priorities[k] > priorities[first] {
					first = k
				}
			}
			if got := q.Pop(); got != first {
				t.Fatalf("step %d: %d came out, want %d", step, got, first)
			}
			model = slices.DeleteFunc(model, func(k int) bool { return k == first })
		case slices.Contains(model, key):
			priorities[key] = d.Int32N(5)
			q.Touch(key)
		default:
			priorities[key] = d.Int32N(5)
			q.Push(key)
			model = append(model, key)
		}
		if q.Len() != len(model) || len(q.waiting) != len(model) {
			t.Fatalf("step %d: %d wait and %d are known, want %d", step, q.Len(), len(q.waiting), len(model))
		}
	}
}

// BenchmarkOrdered measures the cost of one key among waiting ones.
func BenchmarkOrdered(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q := &ordered[int]{priority: func(key int) int32 { return int32(key % 7) }, taken: func(int) {}, waiting: map[int]*waiting[int]{}}
			for i := range n {
				q.Push(i)
			}
			for i := 0; b.Loop(); i++ {
				q.Push(n + i)
				q.Pop()
			}
		})
	}
}
