package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"orrery.dev/orrery/internal/seal"
)

// KeepData deletes the stored data of a cluster's Secrets for which keep returns false, with their
// history. Their metadata stays. For deleted Secrets, keep is called with nil as labels. keep is
// called several times, and must return the same result each time. Data that stays is encrypted
// again with the newest key. Data whose key is unknown is deleted, too; lost is the number of
// existing Secrets whose data was to stay. The events of the journal lose the data as well. Before
// data of an existing Secret is deleted, the checkpoint of the type is deleted. KeepData is
// idempotent.
func (s *Store) KeepData(ctx context.Context, cluster string, keep func(namespace string, labels map[string]string) bool) (lost int, err error) {
	var resealed int
	s.journal.strip(cluster, keep)
	err = s.do(ctx, func(d *database) error {
		lost, resealed, err = d.keepData(ctx, cluster, keep)
		return err
	})
	s.journal.strip(cluster, keep) // also from events that writes have added meanwhile
	if err != nil {
		return 0, fmt.Errorf("look after the data of Secrets of cluster %s: %w", cluster, err)
	}
	if lost > 0 {
		s.log.Info("Data of Secrets cannot be opened with the keys that there are; it is deleted from the mirror, with its history, and read from the cluster again",
			"cluster", cluster, "secrets", lost)
	}
	if resealed > 0 {
		s.log.Info("Data of Secrets is encrypted with the newest key now", "cluster", cluster, "states", resealed)
	}
	return lost, nil
}

// sealedHead is the number of bytes at the beginning of encrypted data that are its format and the
// identity of its key.
const sealedHead = 1 + seal.HeadSize

// secretWork is what KeepData has to do with the encrypted data of Secrets in a cluster, as
// secretsToDo returns it.
type secretWork struct {
	lost      int          // existing Secrets whose data was to stay, and has no key
	strip     []sealedBody // bodies whose data is deleted
	forget    []int64      // objects whose history is deleted
	bodies    []int64      // ids of objects to encrypt again
	revisions []int64      // ids of revisions to encrypt again
}

// sealedBody names an encrypted body of a Secret, by the id of the object. head are the first
// sealedHead bytes of the data.
type sealedBody struct {
	object int64
	head   []byte
}

// sealedPast names an encrypted revision (past state) of a Secret. head are the first sealedHead
// bytes of the data.
type sealedPast struct {
	object, revision int64
	namespace        string
	head             []byte
}

// liveSecret is an existing Secret with encrypted data.
type liveSecret struct {
	sealedBody

	namespace string
	labels    map[string]string
}

// secretsToDo returns the work of KeepData for a cluster. live are the existing Secrets with
// encrypted data, and past are the encrypted revisions. labels are those of existing Secrets, by
// id. If keys is nil, all data is deleted. It is pure.
func secretsToDo(live []liveSecret, labels map[int64]map[string]string, past []sealedPast, keys *seal.Keys, keep func(string, map[string]string) bool) (w secretWork) {
	old := func(head []byte) bool { return !bytes.Equal(head[1:], keys.Newest()) }
	for _, o := range live {
		known, kept := keys.Knows(o.head[1:]), keep(o.namespace, o.labels)
		switch {
		case !known && kept:
			w.lost++
			w.strip = append(w.strip, o.sealedBody)
		case !known || !kept:
			w.strip = append(w.strip, o.sealedBody)
		case old(o.head):
			w.bodies = append(w.bodies, o.object)
		}
	}
	forget := map[int64]bool{}
	for _, r := range past {
		if !keys.Knows(r.head[1:]) || !keep(r.namespace, labels[r.object]) {
			forget[r.object] = true
		}
	}
	for _, r := range past {
		if !forget[r.object] && old(r.head) {
			w.revisions = append(w.revisions, r.revision)
		}
	}
	for id := range forget {
		w.forget = append(w.forget, id)
	}
	slices.Sort(w.forget)
	return w
}

func (d *database) keepData(ctx context.Context, cluster string, keep func(string, map[string]string) bool) (lost, resealed int, err error) {
	kind := d.kind(groupResource{secrets.Group, secrets.Resource})
	if kind == 0 || d.shown(cluster, kind) == "" {
		return 0, 0, nil
	}
	var live []liveSecret
	all := map[int64]map[string]string{} // labels of existing Secrets
	if err := each(ctx, d.read, say(d.dialect, fmt.Sprintf(`SELECT o.id, o.namespace, o.labels, substr(b.packed, 1, %d) FROM object o JOIN body b ON b.object = o.id
		WHERE o.type = ? AND o.cluster = ?`, sealedHead)), func(rows *sql.Rows) error {
		var o liveSecret
		var labels string
		if err := rows.Scan(&o.object, &o.namespace, &labels, &o.head); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(labels), &o.labels); err != nil {
			return fmt.Errorf("%w: read labels: %w", errDamaged, err)
		}
		if all[o.object] = o.labels; sealed(o.head) {
			live = append(live, o)
		}
		return nil
	}, kind, cluster); err != nil {
		return 0, 0, err
	}
	var past []sealedPast
	if err := each(ctx, d.read, say(d.dialect, fmt.Sprintf(`SELECT p.id, p.namespace, r.id, substr(r.body, 1, %d) FROM past p JOIN revision r ON r.object = p.id
		WHERE p.type = ? AND p.cluster = ?`, sealedHead)), func(rows *sql.Rows) error {
		var r sealedPast
		err := rows.Scan(&r.object, &r.namespace, &r.revision, &r.head)
		if err == nil && sealed(r.head) {
			past = append(past, r)
		}
		return err
	}, kind, cluster); err != nil {
		return 0, 0, err
	}
	if len(live) == 0 && len(past) == 0 {
		return 0, 0, nil
	}
	w := secretsToDo(live, all, past, d.sealing.Load(), keep)
	// No checkpoint may cover rows whose data is deleted, even if the deletion is interrupted.
	if len(w.strip) > 0 {
		if err := d.exec(ctx, "UPDATE served SET checkpoint = NULL WHERE cluster = ? AND type = ?", cluster, kind); err != nil {
			return 0, 0, err
		}
	}
	for chunk := range slices.Chunk(w.strip, chunk) {
		if err := d.strip(ctx, chunk); err != nil {
			return 0, 0, err
		}
	}
	for chunk := range slices.Chunk(w.forget, chunk) {
		if err := d.forgetAll(ctx, chunk); err != nil {
			return 0, 0, err
		}
	}
	for chunk := range slices.Chunk(w.bodies, chunk) {
		n, err := d.reseal(ctx, cluster, "SELECT b.object, 0, o.namespace, o.name, o.uid, b.packed FROM object o JOIN body b ON b.object = o.id WHERE o.id = ?",
			"UPDATE body SET packed = ? WHERE object = ?", chunk)
		if resealed += n; err != nil {
			return 0, resealed, err
		}
	}
	for chunk := range slices.Chunk(w.revisions, chunk) {
		n, err := d.reseal(ctx, cluster, "SELECT r.object, r.id, p.namespace, p.name, p.uid, r.body FROM revision r JOIN past p ON p.id = r.object WHERE r.id = ?",
			"UPDATE revision SET body = ? WHERE id = ?", chunk)
		if resealed += n; err != nil {
			return 0, resealed, err
		}
	}
	return w.lost, resealed, nil
}

// strip deletes the encrypted data of bodies. It skips a body that was written since it was read:
// its data no longer begins with head.
func (d *database) strip(ctx context.Context, bodies []sealedBody) error {
	return d.locked(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		text := say(d.dialect, fmt.Sprintf("UPDATE body SET packed = NULL WHERE object = ? AND substr(packed, 1, %d) = ?", sealedHead))
		for _, b := range bodies {
			if _, err := tx.ExecContext(ctx, text, b.object, b.head); err != nil {
				return err
			}
		}
		return nil
	})
}

// forgetAll deletes the history of the objects with these ids, in one transaction. The caller must
// not hold d.mu.
func (d *database) forgetAll(ctx context.Context, objects []int64) error {
	var freed int64
	if err := d.locked(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		freed = 0
		for _, id := range objects {
			size, err := d.forgetPast(ctx, tx, id)
			if err != nil {
				return err
			}
			freed += size
		}
		return d.shrink(ctx, tx, freed)
	}); err != nil {
		return err
	}
	d.grew(-freed)
	return nil
}

// reseal encrypts data of Secrets in a cluster again, with the newest key, in one transaction. n is
// the number of values that it wrote. It skips data that no key can decrypt. ids are those of
// bodies or revisions. For an id, the query find returns the object, the revision (0 for a body),
// the namespace, the name, the UID and the data. The statement put stores the new data.
func (d *database) reseal(ctx context.Context, cluster, find, put string, ids []int64) (n int, err error) {
	err = d.locked(ctx, 1, func(ctx context.Context, tx *sql.Tx, _ int64) error {
		n = 0
		for _, id := range ids {
			var fresh []byte
			if err := each(ctx, tx, say(d.dialect, find), func(rows *sql.Rows) error {
				r := Row{Cluster: cluster, Group: secrets.Group, Resource: secrets.Resource}
				var object, revision int64
				var packed []byte
				if err := rows.Scan(&object, &revision, &r.Namespace, &r.Name, &r.UID, &packed); err != nil || !sealed(packed) {
					return err
				}
				identity := bodyIdentity(&r)
				if revision != 0 {
					identity = revisionIdentity(&r, object, revision)
				}
				plain, err := d.unseal(packed, identity...)
				if errors.Is(err, seal.ErrKey) || errors.Is(err, seal.ErrForeign) {
					return nil // no key can decrypt it
				}
				if err == nil {
					fresh, err = d.seal(plain, identity...)
				}
				return err
			}, id); err != nil {
				return err
			}
			if fresh == nil {
				continue
			}
			if _, err := tx.ExecContext(ctx, say(d.dialect, put), fresh, id); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}
