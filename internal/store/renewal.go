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

// claimRenewal is how often an owner checks whether it has written. The longest time between two
// of its writes is twice as long, which is half of claimPause.
const claimRenewal = 15 * time.Second

// ticker returns ticks of the wall clock.
func ticker(every time.Duration) (ticks <-chan time.Time, stop func()) {
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// renewClaims renews the claim until the store is closed, whenever nothing was written between
// two ticks.
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

// committedAt is the last sequence that was committed under a claim.
type committedAt struct{ claim, seq int64 }

// renewClaim commits a transaction without a change unless one was committed since last. It then
// updates last.
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
