package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"orrery.dev/orrery/internal/testenv"
)

// claimMigration is the migration of server databases that adds the claim to the row of the
// epoch.
const claimMigration = 6

func TestJudge(t *testing.T) {
	left := epochRow{epoch: "e", seq: 10, claim: 5, owner: "me"}
	for name, tc := range map[string]struct {
		found epochRow
		want  error
	}{
		"Same":               {epochRow{"e", 10, 5, "me"}, nil},
		"Claimed":            {epochRow{"e", 12, 12, "other"}, errClaimed},
		"ClaimedInAnother":   {epochRow{"f", 12, 12, "other"}, errClaimed},
		"WrittenUnclaimed":   {epochRow{"e", 11, 5, "me"}, errClaimed},
		"EarlierState":       {epochRow{"e", 9, 5, "me"}, errOther},
		"EarlierClaim":       {epochRow{"e", 20, 4, "me"}, errOther},
		"AnotherDatabase":    {epochRow{"f", 10, 5, "me"}, errOther},
		"AnotherUnclaimed":   {epochRow{"f", 0, 0, ""}, errOther},
		"AnotherWithSameSeq": {epochRow{"f", 11, 5, "me"}, errOther},
	} {
		t.Run(name, func(t *testing.T) {
			if err := judge(tc.found, left); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

// TestFollows: follows accepts the row of the epoch that this store left, and one that this
// store claimed again since then, as when it could not use the database after the claim.
func TestFollows(t *testing.T) {
	left := epochRow{epoch: "e", seq: 10, owner: "me"}
	for name, tc := range map[string]struct {
		found epochRow
		want  bool
	}{
		"Same":         {epochRow{"e", 10, 5, "me"}, true},
		"ClaimedAgain": {epochRow{"e", 30, 20, "me"}, true},
		"ByAnother":    {epochRow{"e", 30, 20, "other"}, false},
		"Earlier":      {epochRow{"e", 9, 5, "me"}, false},
		"Another":      {epochRow{"f", 10, 5, "me"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.found.follows(left); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}

// TestOtherServerYields: a store leaves the database to another server until that server has
// written nothing for the pause.
func TestOtherServerYields(t *testing.T) {
	other, now := otherServer{}, time.Unix(1_700_000_000, 0)
	var got []bool
	for _, step := range []struct {
		seq   int64
		after time.Duration
	}{{1, 0}, {1, 59 * time.Second}, {2, time.Minute}, {2, 59 * time.Second}, {2, time.Second}} {
		now = now.Add(step.after)
		got = append(got, other.yields(epochRow{seq: step.seq}, now, time.Minute))
	}
	if diff := cmp.Diff([]bool{true, true, true, true, false}, got); diff != "" {
		t.Error(diff)
	}
}

// again makes the next call try to open the database, without waiting for reopenDelay.
func again(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = time.Time{}
}

// TestTwoWriters: if two servers use one database, only the one that claimed it last writes.
// The other one notices this before it writes anything, and its error names the owner. It takes
// the database back only when the owner has written nothing for the pause. Then the roles are
// reversed.
func TestTwoWriters(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		a := openStore(t, at)
		write(t, a, numbered(0, 3)...)
		_, err := a.Version(t.Context())
		check(t, err)
		b := openStore(t, at)
		now := time.Unix(1_700_000_000, 0)
		a.claimant.now, b.claimant.now = func() time.Time { return now }, func() time.Time { return now }
		write(t, b, gadget("gadgets"))
		version, err := b.Version(t.Context())
		check(t, err)

		out := func(who, other *Store, change Change) {
			t.Helper()
			again(who)
			err := who.Write(t.Context(), []Change{change})
			if !errors.Is(err, ErrUnavailable) || !errors.Is(err, errClaimed) || !strings.Contains(err.Error(), other.claimant.owner) || !strings.Contains(err.Error(), "stop one of the two") {
				t.Errorf("%v, want that %s writes, and the way out", err, other.claimant.owner)
			}
		}
		other := gadget("gadgets")
		other.Name = "2"
		out(a, b, Change{Row: other})
		out(a, b, Change{Row: numbered(0, 1)[0], Delete: true})
		db := d.Open(t, at)
		consistent(t, db, 4)
		check(t, b.Write(t.Context(), []Change{{Row: numbered(0, 1)[0], Delete: true}}))
		if events, _, _, err := b.Since(pods, version); err != nil || len(events) != 1 {
			t.Errorf("%d events, %v: who writes knows of every change", len(events), err)
		}
		now = now.Add(2 * a.claimant.pause) // but the owner has written in between
		out(a, b, Change{Row: other})
		now = now.Add(a.claimant.pause - time.Second)
		out(a, b, Change{Row: other})
		if a.Losses() != 0 || b.Losses() != 0 {
			t.Errorf("%d and %d losses: nothing was lost", a.Losses(), b.Losses())
		}

		now = now.Add(2 * time.Second)
		again(a)
		check(t, a.Write(t.Context(), []Change{{Row: other}}))
		if a.Losses() != 1 {
			t.Errorf("%d losses: what is stored is another's, and to be written again", a.Losses())
		}
		out(b, a, Change{Row: other, Delete: true})
		consistent(t, db, 4)
	})
}

// TestWriterThatClaimsNothing: a store notices writes of a server that has no claims, such as
// one of an earlier version. It leaves the database to that server for the pause as well.
func TestWriterThatClaimsNothing(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		s := openStore(t, at)
		write(t, s, numbered(0, 1)...)
		_, err := d.Open(t, at).ExecContext(t.Context(), "UPDATE epoch SET seq = seq + 2")
		check(t, err)
		for range 2 {
			again(s)
			if err := s.Write(t.Context(), []Change{{Row: numbered(1, 1)[0]}}); !errors.Is(err, errClaimed) {
				t.Errorf("%v, want errClaimed", err)
			}
		}
		s.claimant.pause = 0
		again(s)
		check(t, s.Write(t.Context(), []Change{{Row: numbered(1, 1)[0]}}))
	})
}

// TestUpgradeClaims: the first claim after an upgrade starts a new epoch. A server of the
// earlier version then sees a replaced database, whose schema is too new for it. Checkpoints
// stay valid, and later claims start no epoch.
func TestUpgradeClaims(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		server, err := parseDSN(at)
		check(t, err)
		db := d.Open(t, at)
		_, err = server.dialect.version(t.Context(), db)
		check(t, err)
		before := server.dialect.migrations()[:claimMigration-1]
		for i, script := range before {
			check(t, migrateOne(t.Context(), server.dialect, db, i+1, script))
		}
		for _, statement := range []string{
			"UPDATE epoch SET id = 'before', seq = 7, terms = 0", "INSERT INTO cluster (name, dropped) VALUES ('a', 0)", "INSERT INTO type (id, grp, resource) VALUES (1, '', 'pods')",
			"INSERT INTO served (cluster, type, api, checkpoint) VALUES ('a', 1, '{}', 'at 7')",
		} {
			_, err := db.ExecContext(t.Context(), statement)
			check(t, err)
		}
		s := openStore(t, at)
		epoch, err := s.Epoch(t.Context())
		check(t, err)
		state, err := s.Checkpoint(t.Context(), "a", pods)
		check(t, err)
		if epoch == "before" || string(state) != "at 7" || s.Losses() != 0 {
			t.Errorf("epoch %s, checkpoint %q, %d losses", epoch, state, s.Losses())
		}
		check(t, s.Close())
		s = openStore(t, at)
		if again, err := s.Epoch(t.Context()); err != nil || again != epoch {
			t.Errorf("epoch %s, %v, and was %s: a later claim begins none", again, err, epoch)
		}
	})
}

// TestClaimDoesNotWaitForEver: a claim that waits for a lock fails after a time, with an error
// that says so, and is retried.
func TestClaimDoesNotWaitForEver(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		check(t, openStore(t, at).Close())
		tx, err := d.Open(t, at).BeginTx(t.Context(), nil)
		check(t, err)
		_, err = tx.ExecContext(t.Context(), "UPDATE epoch SET terms = terms")
		check(t, err)
		s := openStore(t, at, func(s *Store) { s.claimant.patience = 3 * time.Second })
		if _, err := s.List(t.Context(), Query{Resource: "pods"}); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "claim the database") {
			t.Errorf("%v, want that the database cannot be claimed", err)
		}
		check(t, tx.Rollback())
		persist(t, s, numbered(0, 1)...)
	})
}

// TestTwoHubs: two hubs with their own schemas or databases on one server do not affect each
// other.
func TestTwoHubs(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		var other string
		if d == testenv.PostgreSQL {
			db := d.Open(t, at)
			for _, name := range []string{"one", "two"} {
				_, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+name)
				check(t, err)
			}
			at, other = at+"&search_path=one", at+"&search_path=two"
		} else {
			other = d.Create(t)
		}
		one, two := openStore(t, at), openStore(t, other)
		for n := range 3 {
			write(t, one, numbered(n, 2)...)
			write(t, two, numbered(n, 1)...)
		}
		for s, want := range map[*Store]int{one: 4, two: 3} {
			if got := listed(t, s, Query{Resource: "pods"}); len(got) != want || s.Losses() != 0 {
				t.Errorf("%d rows and %d losses, want %d and none", len(got), s.Losses(), want)
			}
		}
	})
}

// TestVersionsOfBeforeAClaim: a version from before a start expires, after any number of later
// changes, even if the database lost its last commits in between.
func TestVersionsOfBeforeAClaim(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		write(t, s, numbered(0, 20)...)
		version, err := s.Version(t.Context())
		check(t, err)
		_, err = s.db.write.ExecContext(context.Background(), "UPDATE epoch SET seq = seq - 10")
		check(t, err)
		check(t, s.Close())
		s = openStore(t, at)
		_, err = s.Version(t.Context())
		check(t, err)
		for n := range 15 {
			if _, now, _, err := s.Since(pods, version); !errors.Is(err, ErrExpired) {
				t.Errorf("after %d writes, at %s: %v, want that %s expired", n, now, err, version)
			}
			write(t, s, pod("a", "x", fmt.Sprint("later-", n), nil, nil))
		}
	})
}
