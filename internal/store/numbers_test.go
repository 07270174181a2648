package store

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"orrery.dev/orrery/internal/testenv"
)

// TestLabelsAreComparedAsNumbers: the operators > and < select the same label values as
// selectors of Kubernetes, with any digits, in lists and counts.
func TestLabelsAreComparedAsNumbers(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		random := testenv.Rand(t)
		values := []string{
			"0", "1", "7", "007", "000000000000000000007", strings.Repeat("0", 63), strings.Repeat("9", 17), strings.Repeat("9", 18), strings.Repeat("9", 19), strings.Repeat("9", 63),
			"1000000000000000000", "9223372036854775806", "9223372036854775807", "9223372036854775808", "09223372036854775807", strings.Repeat("0", 40) + "9223372036854775808",
			"", "x1", "1x", "1.5", "1-2", "1_000", "0x10", "1e3",
		}
		for range 40 {
			values = append(values, strings.Repeat("0", random.IntN(5))+strconv.FormatUint(random.Uint64()>>random.IntN(64), 10))
		}
		var rows []Row
		for i, v := range values {
			rows = append(rows, pod("east", "a", fmt.Sprintf("pod-%02d", i), map[string]string{"n": v}, nil))
		}
		rows = append(rows, pod("east", "a", "without", nil, nil))
		write(t, s, rows...)
		bounds := []int64{0, 5, 7, 8, 1_000_000_000_000_000_000, math.MaxInt64 - 1, math.MaxInt64}
		for range 10 {
			bounds = append(bounds, random.Int64()>>random.IntN(64))
		}
		for _, bound := range bounds {
			for _, operator := range []string{">", "<"} {
				text := "n" + operator + strconv.FormatInt(bound, 10)
				wanted := selector(t, text)
				want := []string{}
				for _, r := range rows {
					if wanted.Matches(labels.Set(r.Labels)) {
						want = append(want, keys([]Row{r})...)
					}
				}
				if diff := cmp.Diff(want, listed(t, s, Query{Resource: "pods", Labels: wanted})); diff != "" {
					t.Errorf("%s: -want +got\n%s", text, diff)
				}
			}
		}
	})
}

// TestFieldNumbersAreComparedAsTheyAreWritten: a number in a body equals its own text and no
// other, as a field and in lists, both in the database and in Go.
func TestFieldNumbersAreComparedAsTheyAreWritten(t *testing.T) {
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		random := testenv.Rand(t)
		numbers := []string{
			"0", "-1", "5", "1.5", "1e-7", "1e+21", "0.000011", "0.3", "0.30000000000000004", "9223372036854775807", "-9223372036854775808", "9223372036854776000",
			"12345678901234567000", "123456789012345680000", "1.7976931348623157e+308", "5e-324", "100000000000000000000",
		}
		for range 20 {
			numbers = append(numbers, number(t, random))
		}
		slices.Sort(numbers)
		numbers = slices.Compact(numbers)
		var rows []Row
		for i, n := range numbers {
			raw := json.RawMessage(n)
			rows = append(rows, pod("east", "a", fmt.Sprintf("pod-%02d", i), nil, map[string]any{
				"ratio": raw, "all": []any{"first", raw}, "of": []any{map[string]any{"ratio": raw}}, "deep": []any{[]any{raw}},
			}))
		}
		write(t, s, rows...)
		for i, n := range numbers {
			other := numbers[(i+1)%len(numbers)]
			for _, path := range []string{"spec.ratio", "spec.all[]", "spec.all[1]", "spec.of[].ratio", "spec.of[0].ratio", "spec.deep[][]"} {
				for _, f := range []FieldRequirement{
					{Path: path, Operator: selection.Equals, Value: n},
					{Path: path, Operator: selection.NotEquals, Value: n},
					{Path: path, Operator: selection.In, Values: []string{n, other}},
					{Path: path, Operator: selection.NotIn, Values: []string{n, other}},
				} {
					q := Query{Resource: "pods", Fields: []FieldRequirement{f}}
					want := []string{}
					for j := range rows {
						same := numbers[j] == n || f.Values != nil && numbers[j] == other
						if same == (f.Operator == selection.Equals || f.Operator == selection.In) {
							want = append(want, keys(rows[j:j+1])...)
						}
						if got := q.selects(&rows[j]); got != slices.Contains(want, keys(rows[j : j+1])[0]) {
							t.Errorf("%+v: in Go %v for %s", f, got, numbers[j])
						}
					}
					if diff := cmp.Diff(want, listed(t, s, q)); diff != "" {
						t.Errorf("%+v: -want +got\n%s", f, diff)
					}
				}
			}
		}
	})
}

// number returns a random number as API servers encode it.
func number(t *testing.T, random *rand.Rand) string {
	t.Helper()
	var v any = int64(random.Uint64()) >> random.IntN(64)
	if random.IntN(2) == 0 {
		v = math.Float64frombits(random.Uint64())
		if f, _ := v.(float64); math.IsNaN(f) || math.IsInf(f, 0) {
			v = random.Float64()
		}
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
