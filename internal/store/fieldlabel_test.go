package store

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/selection"
)

// TestComputedFieldLabels: field labels that API servers compute have the same values here, in
// lists, counts, queries of the past and watches. Requirements on their existence are about the
// fields of the object.
func TestComputedFieldLabels(t *testing.T) {
	type object struct{ body, value string }
	cases := map[string]struct {
		group, resource, label string
		objects                []object
		exist                  []int
	}{
		"HostNetwork": {"", "pods", "spec.hostNetwork", []object{
			{`{"spec":{"hostNetwork":true}}`, "true"}, {`{"spec":{"hostNetwork":false}}`, "false"}, {`{"spec":{"hostNetwork":null}}`, "false"}, {`{"spec":{}}`, "false"}, {`{}`, "false"},
		}, []int{0, 1}},
		"Host":   {"", "pods", "spec.host", []object{{`{"spec":{"nodeName":"n1"}}`, "n1"}, {`{"spec":{"nodeName":""}}`, ""}, {`{"spec":{}}`, ""}}, []int{0, 1}},
		"PodIPs": {"", "pods", "status.podIPs", []object{{`{"status":{"podIPs":[{"ip":"10.0.0.1"}]}}`, ""}, {`{}`, ""}}, []int{0}},
		"Unschedulable": {"", "nodes", "spec.unschedulable", []object{
			{`{"spec":{"unschedulable":true}}`, "true"}, {`{"spec":{"unschedulable":false}}`, "false"}, {`{"spec":{}}`, "false"}, {`{}`, "false"},
		}, []int{0, 1}},
		"Source": {"", "events", "source", []object{
			{`{"source":{"component":"kubelet","host":"n1"},"reportingComponent":"other"}`, "kubelet"},
			{`{"source":{},"reportingComponent":"sched"}`, "sched"},
			{`{"source":{"component":""},"reportingComponent":"sched"}`, "sched"},
			{`{"source":{},"reportingComponent":""}`, ""},
			{`{}`, ""},
			{`{"source":null}`, ""},
		}, []int{0, 1, 2, 3}},
		"Successful":         {"batch", "jobs", "status.successful", []object{{`{"status":{"succeeded":3}}`, "3"}, {`{"status":{"succeeded":0}}`, "0"}, {`{"status":{}}`, "0"}, {`{}`, "0"}}, []int{0, 1}},
		"Replicas":           {"", "replicationcontrollers", "status.replicas", []object{{`{"status":{"replicas":3}}`, "3"}, {`{}`, "0"}}, []int{0}},
		"OtherBooleanAbsent": {"", "pods", "spec.hostPID", []object{{`{"spec":{"hostPID":true}}`, "true"}, {`{"spec":{}}`, ""}}, []int{0}},
		"OtherTypesField":    {"batch", "jobs", "spec.hostNetwork", []object{{`{"spec":{"hostNetwork":false}}`, "false"}, {`{"spec":{}}`, ""}}, []int{0}},
	}
	onEach(t, func(t *testing.T, at string) {
		s := openStore(t, at)
		clock := clocked(t, s)
		for name, c := range cases {
			var rows []Row
			for i, o := range c.objects {
				var body map[string]any
				if err := json.Unmarshal([]byte(o.body), &body); err != nil {
					t.Fatal(err)
				}
				body["metadata"] = map[string]any{"namespace": name, "name": fmt.Sprint(i)}
				raw, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				rows = append(rows, Row{
					Cluster: "east", Group: c.group, Version: "v1", Resource: c.resource, Kind: "Thing", Namespace: name, Name: fmt.Sprint(i), ResourceVersion: "1", Body: raw,
					Created: time.Unix(1_700_000_000, 0).UTC(),
				})
			}
			write(t, s, rows...)
			clock.tick()
			moment := clock.now
			then := map[string][]string{}
			var values []string
			for _, o := range c.objects {
				values = append(values, o.value)
			}
			values = append(values, "", "true", "false", "0", "else")
			var asked []FieldRequirement
			for _, v := range values {
				asked = append(
					asked,
					FieldRequirement{Path: c.label, Operator: selection.Equals, Value: v}, FieldRequirement{Path: c.label, Operator: selection.NotEquals, Value: v},
					FieldRequirement{Path: c.label, Operator: selection.In, Values: []string{v, "else"}}, FieldRequirement{Path: c.label, Operator: selection.NotIn, Values: []string{v, "else"}},
				)
			}
			asked = append(asked, FieldRequirement{Path: c.label, Operator: selection.Exists}, FieldRequirement{Path: c.label, Operator: selection.DoesNotExist})
			for _, f := range asked {
				q := Query{Group: c.group, Resource: c.resource, Namespaces: []string{name}, Fields: []FieldRequirement{f}}
				want := []string{}
				for i, o := range c.objects {
					var selected bool
					switch f.Operator {
					case selection.Equals, selection.NotEquals:
						selected = (o.value == f.Value) == (f.Operator == selection.Equals)
					case selection.In, selection.NotIn:
						selected = slices.Contains(f.Values, o.value) == (f.Operator == selection.In)
					default:
						selected = slices.Contains(c.exist, i) == (f.Operator == selection.Exists)
					}
					if selected {
						want = append(want, keys(rows[i:i+1])...)
					}
					if got := q.Selects(&rows[i]); got != selected {
						t.Errorf("%s: %+v: a watch selects %s: %v", name, f, o.body, got)
					}
				}
				if diff := cmp.Diff(want, listed(t, s, q)); diff != "" {
					t.Errorf("%s: %+v: -want +got\n%s", name, f, diff)
				}
				then[fmt.Sprint(f)] = want
			}
			if c.resource == "events" { // events have no history
				continue
			}
			clock.tick()
			for i := 0; i < len(rows); i += 2 { // the other rows keep their state
				other := rows[i]
				other.Body, other.ResourceVersion = rows[(i+1)%len(rows)].Body, "2"
				write(t, s, other)
			}
			for _, f := range asked {
				page, err := s.List(t.Context(), Query{Group: c.group, Resource: c.resource, Namespaces: []string{name}, Fields: []FieldRequirement{f}, At: moment})
				if diff := cmp.Diff(then[fmt.Sprint(f)], keys(page.Rows)); diff != "" || err != nil {
					t.Errorf("%s: %+v: then, %v: -want +got\n%s", name, f, err, diff)
				}
			}
		}
	})
}
