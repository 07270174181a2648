package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"orrery.dev/orrery/internal/sqlite"
)

// usedSlack is the number of decisions by which the stored last use of a word may be too old. So a
// common word is not updated for every decision.
const usedSlack = 10_000

// maxWords is the maximum number of words that the writer caches. When the cache has so many, it is
// emptied.
const maxWords = 50_000

// known caches rows of the tables cluster and word, which give numbers to the names of clusters and
// to texts that decisions repeat. After a rollback it must be replaced, because it may have numbers
// that are not in the database.
type known struct {
	clusterIDs   map[string]int
	clusterNames map[int]string // nil: not read yet
	wordIDs      map[string]wordUse
	wordTexts    map[uint64]string
}

// wordUse is the number of a word, and the number of the last decision that used the word. That
// last use may be too low, by up to usedSlack.
type wordUse struct {
	id   uint64
	used int64
}

func newKnown() *known {
	return &known{clusterIDs: map[string]int{}, wordIDs: map[string]wordUse{}, wordTexts: map[uint64]string{}}
}

// dictionary translates between the numbers in the database and the names of clusters or texts
// (words), in one transaction. It may add numbers, which are valid only after the commit. Its
// methods return errors of the driver.
type dictionary struct {
	*known
	ctx context.Context //nolint:containedctx // lives as long as one transaction
	tx  *sql.Tx

	decision int64 // the decision that uses the words
	added    int64 // bytes of the added words
}

// names reads the texts of numbers. A number without a text is a sqlite.ErrDamaged. ids reads
// the numbers of texts, and adds a number for a new text.
type (
	// names reads the text of a number: the name of a cluster, or a word. A number without a text is a
	// sqlite.ErrDamaged.
	names struct{ *dictionary }
	// ids reads the number of a text: of the name of a cluster, or of a word. It adds a number for a
	// new text.
	ids struct{ *dictionary }
)

// loadClusters reads the numbers and names of all clusters into the cache. It does nothing if the
// cache has them.
func (d *dictionary) loadClusters() error {
	if d.clusterNames != nil {
		return nil
	}
	rows, err := d.tx.QueryContext(d.ctx, "SELECT id, name FROM cluster")
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	loaded := map[int]string{}
	for rows.Next() {
		var id int
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return err
		}
		loaded[id], d.clusterIDs[name] = name, id
	}
	if err := rows.Err(); err != nil {
		return err
	}
	d.clusterNames = loaded
	return nil
}

func (n names) cluster(id int) (string, error) {
	if err := n.loadClusters(); err != nil {
		return "", err
	}
	name, ok := n.clusterNames[id]
	if !ok {
		return "", fmt.Errorf("%w: cluster %d has no name", sqlite.ErrDamaged, id)
	}
	return name, nil
}

func (i ids) cluster(name string) (int, error) {
	if err := i.loadClusters(); err != nil {
		return 0, err
	}
	if id, ok := i.clusterIDs[name]; ok {
		return id, nil
	}
	var id int
	if err := i.tx.QueryRowContext(i.ctx, "INSERT INTO cluster (name) VALUES (?) RETURNING id", name).Scan(&id); err != nil {
		return 0, err
	}
	i.clusterIDs[name], i.clusterNames[id] = id, name
	return id, nil
}

func (n names) word(id uint64) (string, error) {
	if text, ok := n.wordTexts[id]; ok {
		return text, nil
	}
	var text string
	err := n.tx.QueryRowContext(n.ctx, "SELECT text FROM word WHERE id = ?", int64(id)).Scan(&text) //nolint:gosec // as it was given
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("%w: word %d has no text", sqlite.ErrDamaged, id)
	}
	if err != nil {
		return "", err
	}
	n.wordTexts[id] = text
	return text, nil
}

func (i ids) word(text string) (uint64, error) {
	w, ok := i.wordIDs[text]
	if !ok {
		err := i.tx.QueryRowContext(i.ctx, "SELECT id, used FROM word WHERE text = ?", text).Scan(&w.id, &w.used)
		if errors.Is(err, sql.ErrNoRows) {
			w.used = i.decision
			i.added += int64(2*len(text) + 24)
			err = i.tx.QueryRowContext(i.ctx, "INSERT INTO word (text, used) VALUES (?, ?) RETURNING id", text, w.used).Scan(&w.id)
		}
		if err != nil {
			return 0, err
		}
	}
	if w.used+usedSlack < i.decision {
		w.used = i.decision
		if _, err := i.tx.ExecContext(i.ctx, "UPDATE word SET used = ? WHERE id = ?", w.used, int64(w.id)); err != nil { //nolint:gosec // as it was given
			return 0, err
		}
	}
	if len(i.wordIDs) >= maxWords {
		clear(i.wordIDs)
		clear(i.wordTexts)
	}
	i.wordIDs[text] = w
	return w.id, nil
}
