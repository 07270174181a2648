package records

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetSurvives(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	set := func(share float64, size int) (s clusterSet) {
		for i := range size {
			if random.Float64() < share {
				s.add(i)
			}
		}
		return s
	}
	for _, size := range []int{0, 1, 7, 63, 64, 65, 1000, 5000} {
		for _, share := range []float64{0, 0.01, 0.3, 0.99, 1} {
			for _, otherShare := range []float64{0, 0.5, 1} {
				s, other := set(share, size), set(otherShare, size)
				d := decoder{rest: appendSet(nil, s, other)}
				if diff := cmp.Diff(s.ids(), d.set(other).ids()); diff != "" || d.err != nil || len(d.rest) != 0 {
					t.Fatalf("%v of %d, other %v: %v, %d left, %s", share, size, otherShare, d.err, len(d.rest), diff)
				}
			}
		}
	}
}

// TestSetIsShort checks the sizes on which the estimate for a year is based.
func TestSetIsShort(t *testing.T) {
	set := func(in func(int) bool) (s clusterSet) {
		for i := range 1000 {
			if in(i) {
				s.add(i)
			}
		}
		return s
	}
	all := set(func(int) bool { return true })
	for name, tc := range map[string]struct {
		set  clusterSet
		most int
	}{
		"None":        {nil, 2},
		"All":         {all, 5},
		"AllButFew":   {set(func(i int) bool { return i%100 != 0 }), 25},
		"Few":         {set(func(i int) bool { return i%100 == 0 }), 25},
		"SomeRegions": {set(func(i int) bool { return i/100%3 == 1 }), 20},
		"EveryOther":  {set(func(i int) bool { return i%2 == 0 }), 130},
	} {
		t.Run(name, func(t *testing.T) {
			if n := len(appendSet(nil, tc.set, all)); n > tc.most {
				t.Errorf("%d bytes, want at most %d", n, tc.most)
			}
		})
	}
}

// someTexts has a few clusters and words.
type someTexts struct{}

func (someTexts) cluster(id int) (string, error) {
	if id > 5000 {
		return "", errBody
	}
	return fmt.Sprint("c", id), nil
}

func (someTexts) word(id uint64) (string, error) {
	return []string{"", "a", "a\x00b\x00c", "a\x00b\x00c\x00d"}[id%4], nil
}

// FuzzDecode: every body is decoded or refused.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{format, 0, 0, 1, 3, 0, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{format, 3, 9, 0, 1, 3, 0, 1, 1, 1, 2, 0, 0, 0, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0x7f, 1})
	f.Fuzz(func(t *testing.T, body []byte) {
		if d, err := decode(body, someTexts{}); err == nil && !unchanged(d, canonical(d)) {
			t.Errorf("%x: not canonical", body)
		}
	})
}

// TestDeflateTogether: compressors are shared, their output is not, and an output does not depend
// on earlier input.
func TestDeflateTogether(t *testing.T) {
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for i := range 50 {
				content := bytes.Repeat(fmt.Appendf(nil, `{"image":"web:v%d","worker":%d}`, i, worker), 1+i)
				first, err := deflate(content)
				if err != nil {
					t.Error(err)
					return
				}
				again, err := deflate(content)
				if err != nil || !bytes.Equal(first, again) {
					t.Errorf("the same content is not the same compressed: %v", err)
				}
				if back, err := inflate(first); err != nil || !bytes.Equal(back, content) {
					t.Errorf("%q came back as %q: %v", content, back, err)
				}
			}
		})
	}
	workers.Wait()
}

// BenchmarkDeflate compresses the revision of a small Deployment.
func BenchmarkDeflate(b *testing.B) {
	content := bytes.Repeat([]byte(`{"containers":[{"name":"web","image":"nginx"}]}`), 10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := deflate(content); err != nil {
			b.Fatal(err)
		}
	}
}
