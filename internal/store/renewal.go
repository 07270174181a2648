package store

import (
	"context"
	"database/sql"
	"time"
)

// The owner of a server's database renews its claim when it has nothing to write, with a
// transaction without a change. Another server that waits until the owner has written nothing for
// claimPause sees so that the owner runs. An owner that lost its claim notices it at the next
// renewal at the latest.

// claimRenewal is the interval at which an owner of a server's database checks whether it has
// written anything, and if not, renews its claim. So it writes at least once in two intervals. Two
// intervals are half of claimPause.
const claimRenewal = 15 * time.Second

// ticker returns a channel that receives the wall clock at an interval. The caller must call stop.
// Tests replace it in claimant.ticks.
func ticker(every time.Duration) (ticks <-chan time.Time, stop func()) {
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// renewClaims renews the claim on the database of a server whenever nothing was written between two
// ticks. It returns when the store is closed. A failure is only logged, and tried again at the next
// tick. OpenDSN runs it in a goroutine.
func (s *Store) renewClaims() {
	ticks, stop := s.claimant.ticks(claimRenewal)
	defer stop()
	var at committedAt
	for {
		select {
		case <-ticks:
		case <-s.life.Done():
			return
		}
		if s.problem() != nil {
			continue // there is no claim to renew
		}
		if err := s.do(s.life, func(d *database) error { return d.renewClaim(s.life, &at) }); err != nil {
			s.log.V(1).Info("claim of the mirror's database is not renewed; it is tried again", "error", err.Error())
		}
	}
}

// committedAt is a point in the writes of an owner: the number of its claim, and the last sequence
// committed under it.
type committedAt struct{ claim, seq int64 }

// renewClaim commits a transaction without a change, if nothing was committed since last, the point
// of the previous call. It then updates last, also after an error. The error may be errClaimed if
// another server took the database. The caller must not hold d.mu.
func (d *database) renewClaim(ctx context.Context, last *committedAt) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if *last == (committedAt{d.claim, d.seq}) {
		err = d.transact(ctx, 1, func(context.Context, *sql.Tx, int64) error {
			d.recording = true // the journal cannot miss events, since there are none
			return nil
		})
	}
	*last = committedAt{d.claim, d.seq}
	return err
}
