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

// KeepData makes a cluster's Secrets have data only where keep is true. Labels are nil for
// deleted Secrets. The data is encrypted with the newest key. Other data is deleted, with its
// history; the metadata stays. The journal also drops it: see Since. Data without a known key is
// deleted, too; lost counts the Secrets that should have kept such data. Where data is deleted,
// the checkpoint of the type is deleted. KeepData is idempotent.
func (s *Store) KeepData(ctx context.Context, cluster string, keep func(namespace string, labels map[string]string) bool) (lost int, err error) {
	var resealed int
	s.journal.strip(cluster, keep)
	err = s.do(ctx, func(d *database) error {
		lost, resealed, err = d.keepData(ctx, cluster, keep)
		return err
	})
	s.journal.strip(cluster, keep) // also from events of concurrent writes
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

// sealedHead is the length of the beginning of sealed data that has the format and the key.
const sealedHead = 1 + seal.HeadSize

// secretWork is the work on the sealed data of a cluster.
type secretWork struct {
	lost      int
	strip     []sealedBody // their data is deleted
	forget    []int64      // objects whose history is deleted
	bodies    []int64      // ids of objects to encrypt again
	revisions []int64      // to encrypt again
}

// sealedBody is the body of an object with this beginning.
type sealedBody struct {
	object int64
	head   []byte
}

// sealedPast is a sealed revision of an object.
type sealedPast struct {
	object, revision int64
	namespace        string
	head             []byte
}

// liveSecret is an existing Secret with sealed data.
type liveSecret struct {
	sealedBody

	namespace string
	labels    map[string]string
}

// secretsToDo returns the work to do. It is pure.
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
	// No checkpoint may cover rows without their data, even after an interruption.
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

// strip deletes the data of bodies that have not been written since.
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

// forgetAll deletes the history of objects.
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

// reseal encrypts data with the newest key. The query find returns for an id: the object, the
// revision (0: it is a body), the key, the UID and the data.
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
