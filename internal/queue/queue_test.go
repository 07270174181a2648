package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBackoffGrowsUntilTheWorkSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		done := make(chan struct{})
		q := New(1, time.Second, 3*time.Second, func(context.Context, string) Next {
			at = append(at, time.Since(start))
			switch len(at) {
			case 1, 2, 3, 4:
				return Next{Backoff: true}
			case 5:
				return Next{After: time.Minute}
			default:
				close(done)
				return Next{}
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go q.Run(ctx)
		q.Add("a")
		<-done
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 6 * time.Second, 9 * time.Second, 69 * time.Second}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("worked on at (-want +got):\n%s", diff)
		}
		if n := q.Retries("a"); n != 0 {
			t.Errorf("%d retries are held against the next failure", n)
		}
	})
}

func TestAKeyIsWorkedOnByOneWorkerAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, most, other := 0, 0, 0
		release := make(chan struct{})
		q := New(4, time.Second, time.Second, func(_ context.Context, key string) Next {
			if key == "other" {
				other++
				return Next{}
			}
			busy++
			most = max(most, busy)
			<-release
			busy--
			return Next{}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go q.Run(ctx)
		q.Add("a")
		synctest.Wait()
		q.Add("a") // while it is being worked on
		q.Add("other")
		synctest.Wait()
		if other != 1 {
			t.Error("a key waits for another one")
		}
		release <- struct{}{}
		release <- struct{}{} // it is worked on again
		synctest.Wait()
		if most != 1 {
			t.Errorf("%d workers had the key at once", most)
		}
	})
}

func TestRunEndsWithItsContextAndFinishesWhatItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finished := false
		q := New(1, time.Second, time.Second, func(ctx context.Context, _ string) Next {
			<-ctx.Done()
			finished = true
			return Next{}
		})
		ctx, cancel := context.WithCancel(t.Context())
		q.Add("a")
		time.AfterFunc(time.Second, cancel)
		q.Run(ctx)
		if !finished {
			t.Error("what was begun was not waited for")
		}
	})
}
