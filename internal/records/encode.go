package records

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// format is the first byte of each encoded decision. Another first byte is an error.
const format = 1

var errBody = errors.New("the body of a decision cannot be read")

// canonical returns a decision as it is stored and read again. Targets, evictions and the clusters
// of verdicts are sorted by cluster, verdicts by reason and message. Empty lists are nil, and the
// time is cut to milliseconds. The result shares no lists with d.
func canonical(d Decision) Decision {
	d.Time = fromMilli(d.Time.UnixMilli())
	d.Lost, d.Overrides = owned(d.Lost), owned(d.Overrides)
	d.Targets, d.Evictions = owned(d.Targets), owned(d.Evictions)
	byCluster := func(a, b Target) int { return strings.Compare(a.Cluster, b.Cluster) }
	slices.SortStableFunc(d.Targets, byCluster)
	slices.SortStableFunc(d.Evictions, byCluster)
	d.Verdicts = owned(d.Verdicts)
	for i := range d.Verdicts {
		v := &d.Verdicts[i]
		v.Clusters = owned(v.Clusters)
		slices.Sort(v.Clusters)
		v.Clusters = slices.Compact(v.Clusters)
	}
	slices.SortStableFunc(d.Verdicts, func(a, b Verdict) int {
		return cmp.Or(strings.Compare(a.Reason, b.Reason), strings.Compare(a.Message, b.Message))
	})
	return d
}

// owned returns a copy of a slice that shares no memory with s; nil if s is empty.
func owned[E any](s []E) []E { return append([]E(nil), s...) }

func fromMilli(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// unchanged reports whether two decisions have the same outcome and verdicts. Both must be results
// of canonical. Their times, and the versions of the template, policies and fleet, are ignored. It
// changes neither.
func unchanged(a, b Decision) bool { return reflect.DeepEqual(outcome(a), outcome(b)) }

// outcome returns a copy of a decision without its time and without the versions of the template,
// policies and fleet. It does not change d.
func outcome(d Decision) Decision {
	d.Time, d.Snapshot, d.Template.Generation, d.Claimed.Generation = time.Time{}, 0, 0, 0
	d.Lost, d.Overrides = slices.Clone(d.Lost), slices.Clone(d.Overrides)
	for i := range d.Lost {
		d.Lost[i].Generation = 0
	}
	for i := range d.Overrides {
		d.Overrides[i].Generation = 0
	}
	return d
}

// Flags of a decision's body.
const (
	flagDivided = 1 << iota
	flagReplicas
)

// numbers returns the number of the name of a cluster, or of a text that many decisions have. It
// adds a number if there is none. The encoder uses it; ids implements it.
type numbers interface {
	cluster(name string) (int, error)
	word(text string) (uint64, error)
}

// texts returns the text of a number: the name of a cluster, or a text that many decisions have. An
// unknown number is an error. The decoder uses it; names implements it.
type texts interface {
	cluster(id int) (string, error)
	word(id uint64) (string, error)
}

// encode returns the encoded body of a decision, which must be the result of canonical. It has all
// fields except the template's UID and the time, which have their own columns. The error is that of
// n.
func encode(d Decision, n numbers) ([]byte, error) {
	e := encoder{numbers: n}
	e.body = append(e.body, format)
	var flags byte
	if d.Divided {
		flags |= flagDivided
	}
	if d.Replicas != nil {
		flags |= flagReplicas
	}
	e.body = append(e.body, flags)
	if d.Replicas != nil {
		e.int(int64(*d.Replicas))
	}
	e.uint(d.Snapshot)
	e.word(string(d.Binding))
	e.word(joined(d.Template.APIVersion, d.Template.Kind, d.Template.Namespace, d.Template.Name))
	e.int(d.Template.Generation)
	e.word(d.PlacementHash)
	e.word(d.Reason)
	e.word(d.Message)
	e.policy(d.Claimed)
	e.policies(d.Lost)
	e.policies(d.Overrides)
	targets, all := e.targets(d.Targets), clusterSet(nil)
	e.targets(d.Evictions)

	sets := make([]clusterSet, len(d.Verdicts))
	for i, v := range d.Verdicts {
		for _, c := range v.Clusters {
			if id := e.cluster(c); e.err == nil {
				sets[i].add(id)
				all.add(id)
			}
		}
	}
	all = union(all, targets)
	e.body = appendSet(e.body, all, nil)
	rest := without(all, targets)
	e.uint(uint64(len(d.Verdicts)))
	for i, v := range d.Verdicts {
		e.word(v.Reason)
		e.word(v.Message)
		e.body = appendSet(e.body, sets[i], rest)
		rest = without(rest, sets[i])
	}
	return e.body, e.err
}

// encoder appends the fields of a decision to body. After an error of numbers, err is set, and
// names and texts are not looked up any more.
type encoder struct {
	numbers numbers
	body    []byte
	err     error // the first
}

func (e *encoder) uint(v uint64) { e.body = binary.AppendUvarint(e.body, v) }
func (e *encoder) int(v int64)   { e.body = binary.AppendVarint(e.body, v) }

func (e *encoder) word(text string) {
	if e.err != nil {
		return
	}
	id, err := e.numbers.word(text)
	e.err = err
	e.uint(id)
}

func (e *encoder) cluster(name string) int {
	if e.err != nil {
		return 0
	}
	id, err := e.numbers.cluster(name)
	e.err = err
	return id
}

// separator separates several texts in one text, the result of joined. Names in Kubernetes do not
// contain it. It is removed from other texts, so that every decision can be decoded.
const separator = "\x00"

// joined returns the parts as one text, with separator between them. The separator is removed from
// the parts, also in the argument.
func joined(parts ...string) string {
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(p, separator, "")
	}
	return strings.Join(parts, separator)
}

func (e *encoder) policy(p Policy) {
	e.word(joined(p.Kind, p.Namespace, p.Name))
	e.int(p.Generation)
}

func (e *encoder) policies(ps []Policy) {
	e.uint(uint64(len(ps)))
	for _, p := range ps {
		e.policy(p)
	}
}

// targets encodes clusters with their replicas, sorted by the number of the cluster. It returns the
// set of the clusters.
func (e *encoder) targets(ts []Target) clusterSet {
	type share struct {
		id       int
		replicas *int32
	}
	shares := make([]share, len(ts))
	var set clusterSet
	for i, t := range ts {
		shares[i] = share{e.cluster(t.Cluster), t.Replicas}
		set.add(shares[i].id)
	}
	slices.SortStableFunc(shares, func(a, b share) int { return cmp.Compare(a.id, b.id) })
	e.uint(uint64(len(shares)))
	before := 0
	for _, s := range shares {
		e.uint(uint64(s.id - before)) //nolint:gosec // ascending
		before = s.id
		if s.replicas == nil {
			e.uint(0)
		} else {
			// One more than the zigzag encoding of the value: 0 means none.
			v := int64(*s.replicas)
			e.uint(uint64(v<<1^v>>63) + 1) //nolint:gosec // zigzag
		}
	}
	return set
}

// decode decodes the result of encode, without the template's UID and the time. The decision is as
// canonical returns it. The error is errBody if the body is invalid, or an error of t.
func decode(body []byte, t texts) (d Decision, err error) {
	r := decoder{texts: t, rest: body}
	if f := r.byte(); f != format {
		return Decision{}, fmt.Errorf("%w: format %d is not known", errBody, f)
	}
	flags := r.byte()
	d.Divided = flags&flagDivided != 0
	if flags&flagReplicas != 0 {
		d.Replicas = r.int32()
	}
	d.Snapshot = r.uint()
	d.Binding = types.UID(r.word())
	r.split(r.word(), &d.Template.APIVersion, &d.Template.Kind, &d.Template.Namespace, &d.Template.Name)
	d.Template.Generation = r.int()
	d.PlacementHash, d.Reason, d.Message = r.word(), r.word(), r.word()
	d.Claimed = r.policy()
	d.Lost, d.Overrides = r.policies(), r.policies()
	var targets clusterSet
	d.Targets, targets = r.targets()
	d.Evictions, _ = r.targets()

	rest := without(r.set(nil), targets)
	for range r.count() {
		v := Verdict{Reason: r.word(), Message: r.word()}
		set := r.set(rest)
		v.Clusters = r.names(set.ids())
		rest = without(rest, set)
		d.Verdicts = append(d.Verdicts, v)
	}
	if len(r.rest) > 0 {
		r.fail()
	}
	return canonical(d), r.err
}

// decoder reads the fields of an encoded decision from rest. After an error, its methods return
// zero values, and err has the first error.
type decoder struct {
	texts texts
	rest  []byte
	err   error // the first
}

// fail sets d.err to errBody, unless there is an error already, and drops the rest of the body.
func (d *decoder) fail() {
	if d.err == nil {
		d.err = errBody
	}
	d.rest = nil
}

func (d *decoder) byte() byte {
	b := d.take(1)
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// take returns the next n bytes of the encoded decision, which must not be changed. If there are
// fewer, it sets d.err and returns nil.
func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.rest)) {
		d.fail()
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.rest)
	d.take(uint64(max(n, 0)))
	if n <= 0 {
		d.fail()
		return 0
	}
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.rest)
	d.take(uint64(max(n, 0)))
	if n <= 0 {
		d.fail()
		return 0
	}
	return v
}

func (d *decoder) int32() *int32 {
	v := d.int()
	if v < math.MinInt32 || v > math.MaxInt32 {
		d.fail()
		return nil
	}
	return new(int32(v))
}

// count reads the number of elements of a list. An element takes at least one byte, so a number
// greater than the rest of the body is an error.
func (d *decoder) count() uint64 {
	n := d.uint()
	if n > uint64(len(d.rest)) {
		d.fail()
		return 0
	}
	return n
}

func (d *decoder) word() string {
	id := d.uint()
	if d.err != nil {
		return ""
	}
	text, err := d.texts.word(id)
	d.err = err
	return text
}

func (d *decoder) names(ids []int) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		if d.err != nil {
			return nil
		}
		name, err := d.texts.cluster(id)
		d.err = err
		out = append(out, name)
	}
	return out
}

// split sets parts to the texts that joined has put into text. A text with another number of parts
// is an error.
func (d *decoder) split(text string, parts ...*string) {
	got := strings.Split(text, separator)
	if len(got) != len(parts) {
		d.fail()
		return
	}
	for i, p := range parts {
		*p = got[i]
	}
}

func (d *decoder) policy() (p Policy) {
	d.split(d.word(), &p.Kind, &p.Namespace, &p.Name)
	p.Generation = d.int()
	return p
}

func (d *decoder) policies() (ps []Policy) {
	for range d.count() {
		ps = append(ps, d.policy())
	}
	return ps
}

// targets decodes what encoder.targets encoded: clusters with their replicas, and the set of these
// clusters.
func (d *decoder) targets() (ts []Target, set clusterSet) {
	id := uint64(0)
	for range d.count() {
		id += min(d.uint(), maxCluster)
		replicas := d.uint()
		if d.err != nil || id > maxCluster {
			d.fail()
			return nil, nil
		}
		set.add(int(id))
		t := Target{}
		if names := d.names([]int{int(id)}); len(names) == 1 {
			t.Cluster = names[0]
		}
		if replicas > 0 {
			zigzag := replicas - 1
			t.Replicas = new(int32(zigzag>>1) ^ -int32(zigzag&1)) //nolint:gosec // as it was encoded
		}
		ts = append(ts, t)
	}
	return ts, set
}

// deflaters is a pool of compressors for deflate. Creating a compressor takes a hundred times the
// memory of the content that it compresses.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.DefaultCompression)
	if err != nil {
		panic(err) // the level is constant
	}
	return w
}}

// deflate compresses the content of a revision for the database.
func deflate(content []byte) ([]byte, error) {
	var out bytes.Buffer
	w := deflaters.Get().(*flate.Writer) //nolint:forcetypeassert // New makes nothing else
	defer deflaters.Put(w)
	w.Reset(&out)
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// inflate reverses deflate: it decompresses the content of a revision. Damaged data is an error.
func inflate(compressed []byte) ([]byte, error) {
	return io.ReadAll(flate.NewReader(bytes.NewReader(compressed)))
}
