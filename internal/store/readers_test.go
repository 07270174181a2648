package store

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
)

// patience returns a context with a deadline for requests that could block for ever.
func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	t.Cleanup(cancel)
	return ctx
}

// TestOneReaderIsEnough: no request holds one connection and waits for another. It lists,
// counts and groups with queries of all kinds, in all orders, on near and far pages.
func TestOneReaderIsEnough(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at, withReaders(1))
		random := testenv.Rand(t)
		write(t, s, clusterRows(random)...)
		s.db.nearby = 5
		queries := led(t)
		orders := orders(t)
		for i, name := range slices.Sorted(maps.Keys(queries)) {
			q := queries[name]
			q.Resource, q.Limit, q.Order = "pods", 3, orders[(i+random.IntN(len(orders)))%len(orders)]
			for _, q.Offset = range []int{0, 7} {
				if err := request(patience(t), s, q); err != nil {
					t.Errorf("%s in order %d from %d: %v", name, q.Order, q.Offset, err)
				}
			}
			for _, columns := range [][]OrderColumn{{{Name: "namespace"}}, {{Name: "cluster", Down: true}, {Name: "namespace"}}} {
				order, err := OrderBy(columns...)
				check(t, err)
				if q.Order = order; request(patience(t), s, q) != nil {
					t.Errorf("%s in the order of %v: it waits for another connection", name, columns)
				}
			}
		}
	})
}

// clusterRows returns rows of several clusters.
func clusterRows(random *rand.Rand) (rows []Row) {
	for n := range 120 {
		rows = append(rows, resident(random, string(rune('a'+n%3)), string(rune('x'+n/3%3)), fmt.Sprintf("pod-%02d", n)))
	}
	return rows
}

// request lists, counts and groups with a query.
func request(ctx context.Context, s *Store, q Query) error {
	if _, err := s.List(ctx, q); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	q.Limit, q.Offset, q.Order = 0, 0, ByKey
	if _, err := s.Count(ctx, q); err != nil {
		return fmt.Errorf("count: %w", err)
	}
	if _, err := s.Groups(ctx, q, []By{{Column: "cluster"}, {Column: "namespace"}}); err != nil {
		return fmt.Errorf("group: %w", err)
	}
	return nil
}

// TestReadersBesideWrites: many concurrent readers make requests like those of windows,
// searches and watches, while each write deletes old history. All requests end, and the stored
// rows are consistent.
func TestReadersBesideWrites(t *testing.T) {
	for _, readers := range []int{1, readers} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) {
			onEach(t, func(t *testing.T, at string) {
				const callers, requests, writes = 12, 15, 20
				s := openStore(t, at, withReaders(readers))
				s.KeepHistory(History{Time: time.Minute, Bytes: 1 << 30})
				c := clocked(t, s)
				seed := testenv.Seed(t)
				rows := clusterRows(rand.New(rand.NewPCG(seed, 0)))
				write(t, s, rows...)
				queries := led(t)
				names := slices.Sorted(maps.Keys(queries))
				spaced, err := OrderBy(OrderColumn{Name: "namespace"})
				check(t, err)
				orders := append(orders(t), spaced, spaced, spaced, spaced)
				ctx := patience(t)
				var running sync.WaitGroup
				for caller := range callers {
					running.Go(func() {
						random := rand.New(rand.NewPCG(seed, uint64(caller)+1))
						for range requests {
							q := queries[names[random.IntN(len(names))]]
							q.Resource, q.Limit, q.Order = "pods", 1+random.IntN(20), orders[random.IntN(len(orders))]
							if random.IntN(2) == 0 { // like windows of the console
								q.Order, q.Since = spaced, time.Unix(1_700_000_001, 0)
							}
							if err := request(ctx, s, q); err != nil {
								t.Errorf("caller %d: %v", caller, err)
								return
							}
							if _, err := s.Version(ctx); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				for n := range writes {
					for i := range rows {
						rows[i].ResourceVersion = fmt.Sprint(100 + n)
						rows[i].Labels = map[string]string{"app": "app-1", "n": fmt.Sprint(n)}
					}
					c.now = c.now.Add(2 * time.Minute)
					changes := make([]Change, len(rows))
					for i := range rows {
						changes[i].Row = rows[i]
					}
					check(t, s.Write(ctx, changes))
				}
				running.Wait()
				consistent(t, s.db.read, len(rows))
			})
		})
	}
}

// TestBusyReadersDoNotStopTheWriter: while all readers are busy, writes succeed and old history
// is deleted.
func TestBusyReadersDoNotStopTheWriter(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at, withReaders(1))
		s.KeepHistory(History{Time: time.Minute, Bytes: 1 << 30})
		c := clocked(t, s)
		one := numbered(0, 1)
		write(t, s, one...)
		one[0].ResourceVersion = "8"
		write(t, s, one...)
		busy, err := s.db.read.Conn(t.Context())
		check(t, err)
		c.now = c.now.Add(time.Hour)
		if err := s.Write(patience(t), []Change{{Row: numbered(9, 1)[0]}}); err != nil {
			t.Error(err)
		}
		check(t, busy.Close())
		if n := rowsOf(t, s, "revision"); n != 0 {
			t.Errorf("%d revisions are left of a time of which none is kept", n)
		}
	})
}
