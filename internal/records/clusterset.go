package records

import (
	"encoding/binary"
	"math/bits"
)

// clusterSet is a set of clusters, by their numbers in the database, as a bitmap. nil is the empty
// set. Numbers are not negative.
type clusterSet []uint64 //nolint:recvcheck // only add changes a set

func (s *clusterSet) add(id int) {
	for len(*s) <= id/64 {
		*s = append(*s, 0)
	}
	(*s)[id/64] |= 1 << (id % 64)
}

// ids returns the numbers of the clusters in the set, ascending.
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

// union returns the numbers that are in a, in b or in both, as a new set.
func union(a, b clusterSet) clusterSet {
	out := make(clusterSet, max(len(a), len(b)))
	copy(out, a)
	for i, w := range b {
		out[i] |= w
	}
	return out
}

// without returns the numbers that are in a and not in b, as a new set.
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

// ranks returns, for each number in s that is also in other, its rank: the count of smaller numbers
// in other. Ranks are smaller than the numbers, so they need fewer bits. A number of s that is not
// in other is dropped.
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

// at reverses ranks: s is a set of ranks, and at returns the numbers of other that have these
// ranks. Rank 0 is the smallest number of other. A rank beyond the last number of other is dropped.
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

// appendSet appends the shortest of four encodings of s to b: runs or a bitmap, of the numbers or
// of their ranks in other. The reader must know other; nil: only the numbers are encoded. For the
// clusters that one filter rejected, other are the clusters that earlier filters have left. The set
// then needs only a bit for each of them, and the last filter often rejects all of them.
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

// encodeSet returns the shorter of the encodings of s as runs and as a bitmap, after a byte with
// the form.
func encodeSet(s clusterSet) []byte {
	ids := s.ids()
	runs := appendRuns([]byte{asRuns}, ids)
	if bitmap := appendBitmap([]byte{asBitmap}, ids); len(bitmap) < len(runs) {
		return bitmap
	}
	return runs
}

// appendRuns appends an encoding of ascending numbers as runs of successive numbers: for each run
// the gap before it, and its length if that is more than one.
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

// appendBitmap appends an encoding of ascending numbers as a bitmap: the index of its first byte,
// its length, and its bytes.
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

// maxCluster is the greatest number of a cluster that the decoder accepts. Damaged data could
// otherwise use much memory.
const maxCluster = 1 << 24

// set decodes a set that appendSet encoded, with the same argument other. If the data is damaged,
// set sets d.err, and the result is not valid.
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
