package store

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"orrery.dev/orrery/internal/testenv"
)

// ticking makes a store renew its claim at these ticks instead of those of the wall clock.
func ticking(ticks <-chan time.Time) Option {
	return func(s *Store) {
		s.claimant.ticks = func(time.Duration) (<-chan time.Time, func()) { return ticks, func() {} }
	}
}

// timed gives a store's claims the clock of a test.
func timed(now *time.Time) Option {
	return func(s *Store) { s.claimant.now = func() time.Time { return *now } }
}

// ownerOf returns the owner in the database.
func ownerOf(t *testing.T, d *testenv.Database, at string) (owner string) {
	t.Helper()
	check(t, d.Open(t, at).QueryRowContext(t.Context(), "SELECT owner FROM epoch").Scan(&owner))
	return owner
}

// refused checks that a store cannot write because the database belongs to the owner.
func refused(t *testing.T, s *Store, owner string) {
	t.Helper()
	again(s)
	if err := s.Write(t.Context(), []Change{{Row: numbered(9, 1)[0]}}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, errClaimed) || !strings.Contains(err.Error(), owner) {
		t.Errorf("%v, want that %s writes", err, owner)
	}
}

// TestQuietOwnerKeepsItsDatabase: an owner keeps the database as long as it runs, even if it
// has nothing to write. After its end, the waiting server takes the database when the pause is
// over.
func TestQuietOwnerKeepsItsDatabase(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		now, ticks := time.Unix(1_700_000_000, 0), make(chan time.Time)
		waiting := openStore(t, at, timed(&now))
		write(t, waiting, numbered(0, 3)...)
		owner := openStore(t, at, timed(&now), ticking(ticks))
		write(t, owner, numbered(3, 1)...)
		refused(t, waiting, owner.claimant.owner)
		for range 3 * claimPause / claimRenewal {
			now = now.Add(claimRenewal)
			ticks <- now
			refused(t, waiting, owner.claimant.owner)
		}
		if got := ownerOf(t, d, at); got != owner.claimant.owner || waiting.Losses() != 0 || owner.Losses() != 0 {
			t.Errorf("the database is %s's, with %d and %d losses, want none and %s", got, waiting.Losses(), owner.Losses(), owner.claimant.owner)
		}
		check(t, owner.Write(t.Context(), []Change{{Row: numbered(4, 1)[0]}}))

		check(t, owner.Close())
		refused(t, waiting, owner.claimant.owner)
		now = now.Add(claimPause - time.Second)
		refused(t, waiting, owner.claimant.owner)
		now = now.Add(time.Second)
		again(waiting)
		check(t, waiting.Write(t.Context(), []Change{{Row: numbered(5, 1)[0]}}))
		if waiting.Losses() != 1 {
			t.Errorf("%d losses: what is stored is another's, and to be written again", waiting.Losses())
		}
	})
}

// TestServerOfAnotherHub: a server that is given the database of another hub does not claim it,
// even at its start, until that hub's server has written nothing for the pause. The next server
// of the same hub does not wait.
func TestServerOfAnotherHub(t *testing.T) {
	onServers(t, func(t *testing.T, d *testenv.Database, at string) {
		now := time.Unix(1_700_000_000, 0)
		one := openStore(t, at, ForHub("one"), timed(&now))
		write(t, one, numbered(0, 3)...)
		saveType(t, one, "a", pods)
		two := openStore(t, at, ForHub("two"), timed(&now))
		refused(t, two, "hub one, ")
		// The other owner may claim the database between the check and this claim.
		if db, err := two.server.open(t.Context(), two.claimant); !errors.Is(err, errClaimed) {
			t.Errorf("the claim says %v, want %v", err, errClaimed)
			if err == nil {
				check(t, db.close())
			}
		}
		now = now.Add(claimPause - time.Second)
		check(t, one.Write(t.Context(), []Change{{Row: numbered(3, 1)[0]}}))
		refused(t, two, "hub one, ")
		now = now.Add(claimPause - time.Second)
		refused(t, two, "hub one, ")
		next := openStore(t, at, ForHub("one"), timed(&now))
		write(t, next, numbered(4, 1)...)
		if next.Losses() != 0 || one.Losses() != 0 || two.Losses() != 0 {
			t.Errorf("%d, %d and %d losses, want none", one.Losses(), next.Losses(), two.Losses())
		}
		refused(t, two, next.claimant.owner)
		now = now.Add(claimPause)
		again(two)
		check(t, two.Write(t.Context(), []Change{{Row: numbered(5, 1)[0]}}))
		if two.Losses() != 1 {
			t.Errorf("%d losses: what is stored is another hub's, and to be written again", two.Losses())
		}
		if got := ownerOf(t, d, at); !strings.HasPrefix(got, "hub two, ") {
			t.Errorf("the owner is %s", got)
		}
	})
}

// TestFoundWriterStaysFound: after a write without a claim, or in a replaced database, no
// checkpoint covers the rows until they are written again. This holds after a restart, if the
// write happened while no server ran, and if the database fails while it is opened.
func TestFoundWriterStaysFound(t *testing.T) {
	const unclaimed, earlier = "UPDATE epoch SET seq = seq + 2", "UPDATE epoch SET seq = seq - 1"
	for name, steps := range map[string][]string{
		"Restarted":       {unclaimed, "write", "restart"},
		"WhileDown":       {"stop", unclaimed, "start"},
		"Earlier":         {earlier, "write"},
		"EarlierAndFails": {"refuse", earlier, "write", "write", "allow"},
		"Waited":          {unclaimed, "write", "wait"},
		"WaitedAndFails":  {"refuse", unclaimed, "write", "wait", "write", "write", "allow"},
	} {
		t.Run(name, func(t *testing.T) {
			onServers(t, func(t *testing.T, d *testenv.Database, at string) {
				now, admin := time.Unix(1_700_000_000, 0), d.Open(t, at)
				s := openStore(t, at, timed(&now))
				write(t, s, numbered(0, 3)...)
				saveType(t, s, "a", pods)
				epoch, err := s.Epoch(t.Context())
				check(t, err)
				check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{{Cluster: "a", Resource: pods, Epoch: epoch, State: []byte("at 7")}}))
				dialect, allow := s.db.dialect, func() {}
				for _, step := range steps {
					switch step {
					case "stop", "restart":
						check(t, s.Close())
					case "wait":
						refused(t, s, "did not claim it")
						now = now.Add(claimPause)
					case "refuse":
						allow = refuseDeletions(t, &Store{db: &database{dialect: dialect, write: admin}}, "UPDATE", "served")
					case "allow":
						allow()
					case "write":
						again(s)
						if err := s.Write(t.Context(), []Change{{Row: numbered(3, 1)[0]}}); !errors.Is(err, ErrUnavailable) && !strings.Contains(err.Error(), "not now") {
							t.Errorf("%v, want ErrUnavailable", err)
						}
					case "start":
					default:
						_, err := admin.ExecContext(t.Context(), step)
						check(t, err)
					}
					if step == "start" || step == "restart" {
						s = openStore(t, at, timed(&now))
					}
				}
				again(s)
				state, err := s.Checkpoint(t.Context(), "a", pods)
				check(t, err)
				is, err := s.Epoch(t.Context())
				check(t, err)
				if state != nil || is == epoch || s.Losses() != 1 {
					t.Errorf("checkpoint %q, epoch %s after %s, %d losses: what is stored is believed", state, is, epoch, s.Losses())
				}
				// This happens once. Later checkpoints stay valid.
				check(t, s.SaveCheckpoints(t.Context(), []Checkpoint{{Cluster: "a", Resource: pods, Epoch: is, State: []byte("at 8")}}))
				check(t, s.Close())
				s = openStore(t, at)
				if state, err := s.Checkpoint(t.Context(), "a", pods); err != nil || string(state) != "at 8" || s.Losses() != 0 {
					t.Errorf("checkpoint %q, %v, %d losses after a restart", state, err, s.Losses())
				}
			})
		})
	}
}

// TestDistrust: the stored rows are not trusted if a program wrote without a claim, if a fault
// was found before, or if the database is not as it was left.
func TestDistrust(t *testing.T) {
	left := epochRow{epoch: "e", seq: 10, owner: "me"}
	found := errors.New("found")
	for name, tc := range map[string]struct {
		claimant claimant
		found    epochRow
		written  int64
		want     string
	}{
		"FirstStart":  {claimant{}, epochRow{"e", 10, 5, "other"}, 10, ""},
		"AsItWasLeft": {claimant{left: left}, epochRow{"e", 10, 5, "me"}, 10, ""},
		"Unclaimed":   {claimant{}, epochRow{"e", 12, 5, "me"}, 10, "2 changes"},
		// An earlier state is consistent with its own checkpoints.
		"EarlierState":  {claimant{}, epochRow{"e", 9, 5, "me"}, 10, ""},
		"NotAsLeft":     {claimant{left: left}, epochRow{"f", 10, 5, "me"}, 10, errOther.Error()},
		"FoundBefore":   {claimant{left: left, rejected: found}, epochRow{"e", 10, 5, "me"}, 10, "found"},
		"FoundAtAStart": {claimant{rejected: found}, epochRow{"e", 10, 5, "other"}, 10, "found"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := tc.claimant.distrust(tc.found, tc.written); err != nil {
				got = err.Error()
			}
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestHubOf: hubOf reads the hub from an owner's name, and returns none for servers of unknown
// hubs.
func TestHubOf(t *testing.T) {
	s := &Store{claimant: newClaimant()}
	unknown := s.claimant.owner
	ForHub("7f3c")(s)
	got := []string{hubOf(unknown), hubOf(s.claimant.owner), hubOf(""), hubOf("hub")}
	if !slices.Equal(got, []string{"", "7f3c", "", ""}) {
		t.Errorf("%q", got)
	}
}
