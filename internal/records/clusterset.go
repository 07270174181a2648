package records

import (
	"encoding/binary"
	"math/bits"
)

// clusterSet is a set of numbers of clusters, as a bitmap.
type clusterSet []uint64 //nolint:recvcheck // only add changes a set

func (s *clusterSet) add(id int) {
	for len(*s) <= id/64 {
		*s = append(*s, 0)
	}
	(*s)[id/64] |= 1 << (id % 64)
}

// ids returns the numbers in the set, ascending.
func (s clusterSet) ids() []int {
	out := make([]int, 0, s.count())
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			out = append(out, i*64+bits.TrailingZeros64(w))
		}
	}
	return out
}

func (s clusterSet) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// union returns the numbers in either set.
func union(a, b clusterSet) clusterSet {
	out := make(clusterSet, max(len(a), len(b)))
	copy(out, a)
	for i, w := range b {
		out[i] |= w
	}
	return out
}

// without returns the numbers that are only in the first set.
func without(a, b clusterSet) clusterSet {
	out := make(clusterSet, len(a))
	for i, w := range a {
		if i < len(b) {
			w &^= b[i]
		}
		out[i] = w
	}
	return out
}

// ranks replaces each number in s by the count of smaller numbers in other. All numbers of s must
// be in other.
func (s clusterSet) ranks(other clusterSet) (out clusterSet) {
	rank := 0
	for i, w := range other {
		for ; w != 0; w &= w - 1 {
			if bit := w & -w; i < len(s) && s[i]&bit != 0 {
				out.add(rank)
			}
			rank++
		}
	}
	return out
}

// at reverses ranks. Ranks beyond the other set are dropped.
func (s clusterSet) at(other clusterSet) (out clusterSet) {
	all := other.ids()
	for _, rank := range s.ids() {
		if rank < len(all) {
			out.add(all[rank])
		}
	}
	return out
}

// Forms of an encoded set.
const (
	asRuns   = 0
	asBitmap = 1
	asRanks  = 2 // flag: the encoded set has the ranks in another set
)

// appendSet appends the shortest of four encodings: runs or a bitmap, of the numbers or of their
// ranks in another set that the reader knows. An example of the other set are the clusters that
// earlier filters have left. Each filter then needs only a bit for each of them, and the last one
// often rejects them all.
func appendSet(b []byte, s, other clusterSet) []byte {
	shortest := encodeSet(s)
	if without(s, other).count() == 0 {
		if ranks := encodeSet(s.ranks(other)); len(ranks) < len(shortest) {
			ranks[0] |= asRanks
			shortest = ranks
		}
	}
	return append(b, shortest...)
}

func encodeSet(s clusterSet) []byte {
	ids := s.ids()
	runs := appendRuns([]byte{asRuns}, ids)
	if bitmap := appendBitmap([]byte{asBitmap}, ids); len(bitmap) < len(runs) {
		return bitmap
	}
	return runs
}

// appendRuns encodes the gap before each run of successive numbers, and the length of the run if
// that is more than one.
func appendRuns(b []byte, ids []int) []byte {
	type run struct{ gap, length uint64 }
	var runs []run
	next := 0
	for _, id := range ids {
		if n := len(runs); n > 0 && id == next {
			runs[n-1].length++
		} else {
			runs = append(runs, run{uint64(id - next), 1}) //nolint:gosec // ascending
		}
		next = id + 1
	}
	b = binary.AppendUvarint(b, uint64(len(runs)))
	for _, r := range runs {
		if r.length == 1 {
			b = binary.AppendUvarint(b, r.gap<<1)
			continue
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, r.gap<<1|1), r.length)
	}
	return b
}

func appendBitmap(b []byte, ids []int) []byte {
	if len(ids) == 0 {
		return append(b, 0, 0)
	}
	first := ids[0] / 8
	bitmap := make([]byte, ids[len(ids)-1]/8-first+1)
	for _, id := range ids {
		bitmap[id/8-first] |= 1 << (id % 8)
	}
	b = binary.AppendUvarint(b, uint64(first)) //nolint:gosec // not negative
	b = binary.AppendUvarint(b, uint64(len(bitmap)))
	return append(b, bitmap...)
}

// maxCluster bounds the numbers of clusters in a damaged set.
const maxCluster = 1 << 24

// set decodes a set that appendSet encoded with the same other set.
func (d *decoder) set(other clusterSet) clusterSet {
	form := d.byte()
	var s clusterSet
	if form&asBitmap != 0 {
		first, bitmap := d.uint(), d.take(d.uint())
		if first > maxCluster || len(bitmap) > maxCluster {
			d.fail()
			return nil
		}
		for i, c := range bitmap {
			for ; c != 0; c &= c - 1 {
				s.add((int(first)+i)*8 + bits.TrailingZeros8(c))
			}
		}
	} else {
		next := uint64(0)
		for range d.count() {
			gap, length := d.uint(), uint64(1)
			if gap&1 != 0 {
				length = d.uint()
			}
			if gap > maxCluster || length > maxCluster || next+gap>>1+length > maxCluster {
				d.fail()
				return nil
			}
			next += gap >> 1
			for range length {
				s.add(int(next))
				next++
			}
		}
	}
	if form&asRanks != 0 {
		return s.at(other)
	}
	return s
}
