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

// Only one server writes. The row of the epoch has the owner of the database and the owner's
// claim. Every transaction checks the claim with the statement that takes its sequences. A server
// that opens the database claims it. So a new server takes over from one that died, or lost the
// connection to its hub. The previous owner notices that with its next transaction, before it
// writes anything. It then uses the database and its schema again only when the new owner has
// written nothing for some time.

// claimStride is the number of sequences that a claim takes; the last one is the claim. It
// exceeds the number of last commits that a database may lose when its host loses power. So no
// sequence from before a claim is used again after it, and earlier versions expire.
const claimStride = 1_000_000

const (
	// claimPatience is how long a claim waits, and the lock for changes of the schema.
	claimPatience = 15 * time.Second
	// claimPause is how long the other server must write nothing until a server that lost its
	// claim takes the database again. A running owner writes more often: see claimRenewal.
	claimPause = 4 * claimRenewal
)

// errClaimed means that another server has claimed the database.
var errClaimed = errors.New("another server writes to the mirror's database now")

// claimant describes a store that claims a database.
type claimant struct {
	owner string
	hub   string // ID of the server's hub; "": unknown
	// The row of the epoch when this store left the database; without an epoch: unknown.
	left     standing
	granted  standing // the row of another hub's owner that has stopped; zero: none
	rejected error    // why the stored contents must not be trusted; nil: no reason
	patience time.Duration
	pause    time.Duration
	now      func() time.Time
	ticks    func(every time.Duration) (ticks <-chan time.Time, stop func())
}

// newClaimant identifies this store for other servers, by host and process.
func newClaimant() claimant {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return claimant{owner: fmt.Sprintf("%s, process %d, %s", host, os.Getpid(), rand.Text()[:8]), patience: claimPatience, pause: claimPause, now: time.Now, ticks: ticker}
}

// ForHub makes the store claim a server's database for a hub. It claims a database with an owner
// of another hub only after that owner has written nothing for claimPause, even at the start.
func ForHub(id string) Option {
	return func(s *Store) {
		s.claimant.hub = id
		s.claimant.owner = hubPrefix + id + ", " + s.claimant.owner
	}
}

// hubPrefix is the prefix of an owner's name that contains its hub.
const hubPrefix = "hub "

// hubOf returns the hub in the name of an owner; "": none.
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

// judge returns an error if a writer finds another row of the epoch than it left. It is pure.
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

// distrust returns why the stored contents must not be trusted; nil: only owners with claims have
// written, and the database is as this store left it. written is the sequence up to which owners
// wrote. It is pure.
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

// follows reports whether only the owner in left can have written since then. It is pure.
func (s *standing) follows(left standing) bool {
	return s.epoch == left.epoch && (s.seq == left.seq || s.seq > left.seq && s.owner == left.owner)
}

// held returns an error if the database is not as this writer left it.
func (d *database) held(found standing) error {
	return judge(found, standing{epoch: d.epoch, seq: d.seq, claim: d.claim})
}

// take takes n sequences if this writer has the claim, and returns the row of the epoch as it was
// before. The row is locked until the transaction ends.
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
// epoch, so servers of versions without claims see a replaced database, with a schema too new for
// them. A claim of an untrusted database also begins an epoch, and deletes its checkpoints in the
// same transaction.
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

// admit returns errClaimed if the database has an owner of another hub that is not known to have
// stopped. The claiming transaction calls it, because the owner may be newer than the last check.
func (c *claimant) admit(found standing) error {
	if hub := hubOf(found.owner); c.hub == "" || hub == "" || hub == c.hub || found == c.granted {
		return nil
	}
	return fmt.Errorf("%w: %s", errClaimed, found.owner)
}

// rival is another server that took the database from this one.
type rival struct {
	seen  standing
	since time.Time // time at which it was first seen in this state
}

// yields reports whether the other server still owns the database: found, the row at the time
// now, has changed within the pause. It only updates r.
func (r *rival) yields(found standing, now time.Time, pause time.Duration) bool {
	if r.since.IsZero() || r.seen != found {
		r.seen, r.since = found, now
		return true
	}
	return now.Sub(r.since) < pause
}

// yield makes the store leave the database to another server, and no longer trust its contents.
// The caller holds s.opening.
func (s *Store) yield(why error) { s.rival, s.rejected = &rival{}, why }

// leave returns an error while the database belongs to the server that took it from this one, or
// to an owner of another hub. It only reads.
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
			return nil // opening the database reports the error
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
