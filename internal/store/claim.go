package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// One server writes. The row of the epoch has the owner of the database and the owner's claim, which every transaction checks with the
// statement that takes its sequences. Who opens the database claims it: a server that starts takes over from one that died, or that was
// cut off from its hub. The other notices with its next transaction, before it has written anything, and leaves the database alone, its
// schema too, until the new owner has written nothing for some time.

// claimStride is how many sequences a claim takes; the last one is the claim. They are more than the last commits that a database may lose
// when its host loses power: no sequence that was given before a claim is given again after it, so versions of before it expire.
const claimStride = 1_000_000

const (
	// claimPatience is how long a claim, and the lock under which a schema is made, is waited for.
	claimPatience = 15 * time.Second
	// claimPause is how long a server that lost its claim leaves the database to another that
	// writes nothing. An owner that runs writes more often than that, see renewal.
	claimPause = 4 * claimRenewal
)

// errClaimed: another server has claimed the database.
var errClaimed = errors.New("another server writes to the mirror's database now")

// claimant is who claims a database.
type claimant struct {
	owner    string
	hub      string   // the server's; "": unknown
	left     standing // the database when this store left it; without an epoch: unknown
	granted  standing // the standing of another hub's owner that has ended; zero: of none
	rejected error    // why nothing vouches for what is stored; nil: no reason is known
	patience time.Duration
	pause    time.Duration
	now      func() time.Time
	ticks    func(every time.Duration) (ticks <-chan time.Time, stop func())
}

// newClaimant names this store for other servers: by the host and the process.
func newClaimant() claimant {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return claimant{owner: fmt.Sprintf("%s, process %d, %s", host, os.Getpid(), rand.Text()[:8]), patience: claimPatience, pause: claimPause, now: time.Now, ticks: ticker}
}

// ForHub has the store claim a server's database for a hub. A database whose owner is of another
// hub is not claimed before that owner has written nothing for the pause, also not at the start.
func ForHub(id string) Option {
	return func(s *Store) {
		s.claimant.hub = id
		s.claimant.owner = hubPrefix + id + ", " + s.claimant.owner
	}
}

// hubPrefix begins the name of an owner that is of a known hub.
const hubPrefix = "hub "

// hubOf returns the hub that the name of an owner begins with; "": it names none.
func hubOf(owner string) string {
	named, found := strings.CutPrefix(owner, hubPrefix)
	if !found {
		return ""
	}
	hub, _, _ := strings.Cut(named, ", ")
	return hub
}

// standing is the row of the epoch.
type standing struct {
	epoch string
	seq   int64
	claim int64 // 0: no server has claimed the database
	owner string
}

const standingQuery = "SELECT id, seq, claim, owner FROM epoch"

func (s *standing) scan(row *sql.Row) error { return row.Scan(&s.epoch, &s.seq, &s.claim, &s.owner) }

// judge says what is wrong where a writer finds another row of the epoch than it left; nil: it is the same. It is pure.
func judge(found, left standing) error {
	switch {
	case found.claim > left.claim:
		return fmt.Errorf("%w: %s; stop one of the two, or give each a database or a schema of its own", errClaimed, found.owner)
	case found.claim < left.claim || found.epoch != left.epoch || found.seq < left.seq:
		return fmt.Errorf("%w: its epoch is %s with %d changes, and was %s with %d", errOther, found.epoch, found.seq, left.epoch, left.seq)
	case found.seq > left.seq:
		return fmt.Errorf("%w, and did not claim it: there are %d changes where %d were left; stop the other, which may be of an earlier version",
			errClaimed, found.seq, left.seq)
	}
	return nil
}

// distrust says why nothing vouches for what is stored in a database that was found; nil: only
// owners of claims have written to it, and it is as this store left it. written is how far the
// owners have counted the changes. It is pure.
func (c *claimant) distrust(found standing, written int64) error {
	switch {
	case found.seq > written:
		return fmt.Errorf("%d changes are of a program that did not claim the database; stop that program, which may be a server of an earlier version, "+
			"or give it a database or a schema of its own", found.seq-written)
	case c.rejected != nil:
		return c.rejected
	case c.left.epoch != "" && !found.follows(c.left):
		return errOther
	}
	return nil
}

// follows says whether nobody but the owner of another standing can have written since. It is pure.
func (s *standing) follows(left standing) bool {
	return s.epoch == left.epoch && (s.seq == left.seq || s.seq > left.seq && s.owner == left.owner)
}

// held says whether the database is as this writer left it.
func (d *database) held(found standing) error {
	return judge(found, standing{epoch: d.epoch, seq: d.seq, claim: d.claim})
}

// take takes n sequences if this writer holds the claim, and returns the row of the epoch as it was before. The row is locked until the
// transaction ends.
func (d *database) take(ctx context.Context, tx *sql.Tx, n int64) (found standing, err error) {
	if _, err := tx.ExecContext(ctx, say(d.dialect, "UPDATE epoch SET seq = seq + ?, written = written + ? WHERE claim = ?"), n, n, d.claim); err != nil {
		return found, err
	}
	if err := found.scan(tx.QueryRowContext(ctx, standingQuery)); err != nil {
		return found, err
	}
	if found.claim == d.claim {
		found.seq -= n
	}
	return found, nil
}

// advance takes n sequences and returns the last one.
func (d *database) advance(ctx context.Context, tx *sql.Tx, n int64) (last int64, err error) {
	found, err := d.take(ctx, tx, n)
	if err == nil {
		err = d.held(found)
	}
	return found.seq + n, err
}

// acquire claims the database for this writer. The first claim of a server's database begins an
// epoch: servers of versions that know of no claims find another database than they left, and this
// one's schema is too new for them. So does a claim of a database that is not to be trusted, whose
// checkpoints the same transaction deletes.
func (d *database) acquire(ctx context.Context, c claimant) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	var found standing
	_, err = tx.ExecContext(ctx, say(d.dialect, "UPDATE epoch SET seq = seq + ?"), claimStride)
	if err == nil {
		err = found.scan(tx.QueryRowContext(ctx, standingQuery))
	}
	var written int64
	if err == nil {
		err = tx.QueryRowContext(ctx, "SELECT written FROM epoch").Scan(&written)
	}
	if err == nil {
		d.found = found
		d.found.seq -= claimStride
		if _, file := d.dialect.(sqliteDialect); !file {
			err = c.admit(d.found)
			d.distrusted = c.distrust(d.found, written)
			if found.claim == 0 || d.distrusted != nil {
				found.epoch = rand.Text()
			}
		}
		if err == nil && d.distrusted != nil {
			_, err = tx.ExecContext(ctx, "UPDATE served SET checkpoint = NULL")
		}
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, say(d.dialect, "UPDATE epoch SET id = ?, claim = ?, owner = ?, written = seq"), found.epoch, found.seq, c.owner)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("claim the database: %w", err), rollback(d.dialect, tx))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("claim the database: %w", err)
	}
	d.epoch, d.seq, d.claim = found.epoch, found.seq, found.seq
	return nil
}

// admit returns errClaimed if a database is that of another hub whose owner is not known to have
// ended. The transaction of the claim asks it, because the owner may have come after the last look.
func (c *claimant) admit(found standing) error {
	if hub := hubOf(found.owner); c.hub == "" || hub == "" || hub == c.hub || found == c.granted {
		return nil
	}
	return fmt.Errorf("%w: %s", errClaimed, found.owner)
}

// rival is another server that took the database from this one.
type rival struct {
	seen  standing
	since time.Time // when it was seen first as it is
}

// yields says whether the database is still the rival's, which is as it was found at a time: until it has not changed for the pause. It is
// pure but for what it remembers.
func (r *rival) yields(found standing, now time.Time, pause time.Duration) bool {
	if r.since.IsZero() || r.seen != found {
		r.seen, r.since = found, now
		return true
	}
	return now.Sub(r.since) < pause
}

// yield has the store leave the database to another server, and trust nothing in it afterwards.
// s.opening must be held.
func (s *Store) yield(why error) { s.rival, s.rejected = &rival{}, why }

// leave returns an error while the database is left to the server that took it from this one, or to
// the owner of another hub. Nothing is done there but to look.
func (s *Store) leave(ctx context.Context) error {
	if s.rival == nil && s.claimant.hub == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.claimant.patience)
	defer cancel()
	db, err := s.server.connect()
	if err != nil {
		return err
	}
	var found standing
	err = found.scan(db.QueryRowContext(ctx, standingQuery))
	if closeErr := db.Close(); closeErr != nil {
		return errors.Join(err, closeErr)
	}
	if s.rival == nil {
		if hub := hubOf(found.owner); err != nil || hub == "" || hub == s.claimant.hub {
			return nil // whoever opens the database next says it
		}
		s.yield(fmt.Errorf("%w: %s", errClaimed, found.owner))
	}
	if err != nil && s.server.dialect.fault(err) != faultDamaged && !errors.Is(err, sql.ErrNoRows) {
		return classify(s.server.dialect, err)
	}
	if !s.rival.yields(found, s.claimant.now(), s.claimant.pause) {
		return nil
	}
	owner := found.owner
	switch owner {
	case "":
		owner = "of an unknown name"
	case s.claimant.owner:
		owner = "one that did not claim it, and may be of an earlier version"
	}
	return fmt.Errorf("%w: %w: %s; stop one of the two, or give each a database or a schema of its own; this one takes the database again when the other has written nothing for %s",
		ErrUnavailable, errClaimed, owner, s.claimant.pause)
}
