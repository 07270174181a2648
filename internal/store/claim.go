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

// claimStride is the number of sequences that a claim takes. A sequence is the number of a change,
// and the last sequence of the stride is the number of the claim. The stride exceeds the number of
// last commits that a database may lose when its host loses power. So no sequence from before a
// claim is used again after it, and versions from before the claim expire.
const claimStride = 1_000_000

const (
	// claimPatience limits how long a claim of the database takes, and the wait for the lock on
	// changes of the schema.
	claimPatience = 15 * time.Second
	// claimPause is the time without a write of the owner after which another server takes the
	// database. That other server lost its claim to the owner, or belongs to another hub. A running
	// owner writes more often, see claimRenewal.
	claimPause = 4 * claimRenewal
)

// errClaimed means that another server has claimed the database, and this one must not write.
var errClaimed = errors.New("another server writes to the mirror's database now")

// claimant describes the store that claims a database: its unique name as owner, its hub, and what
// it knows about the database.
type claimant struct {
	owner string // unique name of this store
	hub   string // ID of the server's hub; "": unknown
	// The row of the epoch when this store last used the database; without an epoch: unknown.
	left     epochRow
	granted  epochRow         // row of an owner of another hub that has stopped; zero: none
	rejected error            // why the stored contents must not be trusted; nil: no reason
	patience time.Duration    // time limit of a claim
	pause    time.Duration    // see claimPause
	now      func() time.Time // clock
	// The function ticker, except in tests; for renewClaims.
	ticks func(every time.Duration) (ticks <-chan time.Time, stop func())
}

// newClaimant returns the description of a new store. Its name as owner is unique: host, process
// and a random text. Its hub is unknown until ForHub sets it.
func newClaimant() claimant {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return claimant{owner: fmt.Sprintf("%s, process %d, %s", host, os.Getpid(), rand.Text()[:8]), patience: claimPatience, pause: claimPause, now: time.Now, ticks: ticker}
}

// ForHub is the option with which a store claims the database of a server for the hub with this ID.
// If the database has an owner of another hub, the store waits until that owner has written nothing
// for claimPause. It also waits at the start of the process.
func ForHub(id string) Option {
	return func(s *Store) {
		s.claimant.hub = id
		s.claimant.owner = hubPrefix + id + ", " + s.claimant.owner
	}
}

// hubPrefix is the beginning of an owner's name that contains the ID of a hub.
const hubPrefix = "hub "

// hubOf returns the ID of the hub in the name of an owner, or "" if the name has none.
func hubOf(owner string) string {
	named, found := strings.CutPrefix(owner, hubPrefix)
	if !found {
		return ""
	}
	hub, _, _ := strings.Cut(named, ", ")
	return hub
}

// epochRow is the only row of the table epoch: the ID of the database, its last sequence, and its
// owner with the claim. It leaves out the columns on the history.
type epochRow struct {
	epoch string // ID of the database
	seq   int64  // last sequence
	claim int64  // number of the owner's claim; 0: no server has claimed it
	owner string // name of the server that claimed it
}

const epochQuery = "SELECT id, seq, claim, owner FROM epoch"

func (r *epochRow) scan(row *sql.Row) error { return row.Scan(&r.epoch, &r.seq, &r.claim, &r.owner) }

// judge compares the row of the epoch that a writer finds (found) with the row after its own last
// write (left). It returns errClaimed if another writer has written or claimed the database. It
// returns errOther if the database was replaced or went back to an earlier state, and nil for the
// same row. It is pure.
func judge(found, left epochRow) error {
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

// distrust returns why the rows of a server's database must not be trusted when it is claimed; nil:
// they can be trusted. Reasons are a program that wrote without a claim, an earlier reason in
// c.rejected, and a database that is not as this store left it. written is the sequence up to which
// owners with claims wrote. It is pure.
func (c *claimant) distrust(found epochRow, written int64) error {
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

// follows reports whether r is the row left, or that row after writes of only the same owner. It is
// pure.
func (r *epochRow) follows(left epochRow) bool {
	return r.epoch == left.epoch && (r.seq == left.seq || r.seq > left.seq && r.owner == left.owner)
}

// held returns nil if found, the present row of the epoch, is as this writer left it. Otherwise it
// returns the errClaimed or errOther of judge. The caller holds d.mu.
func (d *database) held(found epochRow) error {
	return judge(found, epochRow{epoch: d.epoch, seq: d.seq, claim: d.claim})
}

// take adds n to the sequence (the number of the last change) of the database, if this writer still
// has the claim. It returns the row of the epoch as it was before, and the row stays locked until
// the transaction ends. If another writer has the claim, take changes nothing, and returns the row
// of that writer without an error. The caller passes the row to held.
func (d *database) take(ctx context.Context, tx *sql.Tx, n int64) (found epochRow, err error) {
	if _, err := tx.ExecContext(ctx, say(d.dialect, "UPDATE epoch SET seq = seq + ?, written = written + ? WHERE claim = ?"), n, n, d.claim); err != nil {
		return found, err
	}
	if err := found.scan(tx.QueryRowContext(ctx, epochQuery)); err != nil {
		return found, err
	}
	if found.claim == d.claim {
		found.seq -= n
	}
	return found, nil
}

// advance takes the next n sequences, the numbers of changes, for a transaction that writes. It
// returns the last of them. The error is errClaimed or errOther if the database is not as this
// writer left it; the caller then rolls back. The caller holds d.mu.
func (d *database) advance(ctx context.Context, tx *sql.Tx, n int64) (last int64, err error) {
	found, err := d.take(ctx, tx, n)
	if err == nil {
		err = d.held(found)
	}
	return found.seq + n, err
}

// acquire claims the database for the store that c describes, and sets d.found, d.distrusted,
// d.epoch, d.seq and d.claim. The first claim of a server's database gives it a new epoch. Then
// servers of versions without claims see a replaced database, with a schema too new for them. A
// database whose rows must not be trusted also gets a new epoch, and its checkpoints are deleted in
// the same transaction. A file is always trusted, and keeps its epoch. The error is errClaimed if
// the owner belongs to another hub and may still run.
func (d *database) acquire(ctx context.Context, c claimant) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	var found epochRow
	_, err = tx.ExecContext(ctx, say(d.dialect, "UPDATE epoch SET seq = seq + ?"), claimStride)
	if err == nil {
		err = found.scan(tx.QueryRowContext(ctx, epochQuery))
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

// admit returns errClaimed if the owner in found belongs to another hub and is not known to have
// stopped (c.granted). It returns nil for an owner of the same hub or without a hub. acquire calls
// it in its transaction, because the owner may have changed since Store.leave.
func (c *claimant) admit(found epochRow) error {
	if hub := hubOf(found.owner); c.hub == "" || hub == "" || hub == c.hub || found == c.granted {
		return nil
	}
	return fmt.Errorf("%w: %s", errClaimed, found.owner)
}

// otherServer is another server that owns the database: it took the database from this server, or
// belongs to another hub. This server waits until that server writes nothing any more.
type otherServer struct {
	seen  epochRow  // last row of the epoch that was read
	since time.Time // when that row was read first; zero: none was read
}

// yields reports whether this server must still leave the database to the other server. found is
// the row of the epoch at the time now. The result is true if the row differs from the last one, or
// has been the same for less than pause. The first call always returns true. yields only updates o.
func (o *otherServer) yields(found epochRow, now time.Time, pause time.Duration) bool {
	if o.since.IsZero() || o.seen != found {
		o.seen, o.since = found, now
		return true
	}
	return now.Sub(o.since) < pause
}

// yield records that another server owns the database, for the reason why. The store leaves the
// database to that server, and no longer trusts its rows: the next open counts as a loss. The
// caller holds s.opening.
func (s *Store) yield(why error) { s.otherServer, s.rejected = &otherServer{}, why }

// leave returns nil if this store may claim the database of the server. It returns an
// ErrUnavailable while another server owns the database, which took it from this store or belongs
// to another hub. It connects to the server and only reads the row of the epoch. The caller holds
// s.opening.
func (s *Store) leave(ctx context.Context) error {
	if s.otherServer == nil && s.claimant.hub == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.claimant.patience)
	defer cancel()
	db, err := s.server.connect()
	if err != nil {
		return err
	}
	var found epochRow
	err = found.scan(db.QueryRowContext(ctx, epochQuery))
	if closeErr := db.Close(); closeErr != nil {
		return errors.Join(err, closeErr)
	}
	if s.otherServer == nil {
		if hub := hubOf(found.owner); err != nil || hub == "" || hub == s.claimant.hub {
			return nil // opening the database reports the error
		}
		s.yield(fmt.Errorf("%w: %s", errClaimed, found.owner))
	}
	if err != nil && s.server.dialect.fault(err) != faultDamaged && !errors.Is(err, sql.ErrNoRows) {
		return classify(s.server.dialect, err)
	}
	if !s.otherServer.yields(found, s.claimant.now(), s.claimant.pause) {
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
