package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestOrdered: the start order is that of the list, except that each component comes after those
// that it requires. A list that has no such order is refused, and the error says what to change.
func TestOrdered(t *testing.T) {
	part := func(name, requires, calls string) component {
		return component{name: name, requires: strings.Fields(requires), calls: strings.Fields(calls)}
	}
	for name, c := range map[string]struct {
		list       []component
		want, says string
	}{
		"Empty":              {},
		"AsListed":           {list: []component{part("c", "", ""), part("a", "c", ""), part("b", "", "")}, want: "c a b"},
		"RequiredFirst":      {list: []component{part("a", "c", ""), part("b", "", ""), part("c", "d", ""), part("d", "", "")}, want: "d c a b"},
		"RequiredTwice":      {list: []component{part("a", "b c", ""), part("b", "d", ""), part("c", "d b", ""), part("d", "", "")}, want: "d b c a"},
		"CallsSetNoOrder":    {list: []component{part("a", "", "b"), part("b", "a", "")}, want: "a b"},
		"Twice":              {list: []component{part("a", "", ""), part("a", "", "")}, says: "component a is twice in the list"},
		"RequiresMissing":    {list: []component{part("a", "b", "")}, says: "component a depends on b, which is not in the list"},
		"CallsMissing":       {list: []component{part("a", "", "b")}, says: "component a depends on b, which is not in the list"},
		"RequiresItself":     {list: []component{part("a", "a", "")}, says: "a requires a:"},
		"Cycle":              {list: []component{part("x", "a", ""), part("a", "b", ""), part("b", "c", ""), part("c", "a", "")}, says: ": a requires b requires c requires a: "},
		"CycleBesideAnOrder": {list: []component{part("x", "", ""), part("a", "x b", ""), part("b", "x a", "")}, says: ": a requires b requires a: "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ordered(c.list)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || got != nil {
					t.Fatalf("%v, %v; want an error with %q", names(got), err, c.says)
				}
				return
			}
			if diff := cmp.Diff(strings.Fields(c.want), names(got)); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

func names(list []component) []string {
	out := []string{}
	for _, c := range list {
		out = append(out, c.name)
	}
	return out
}

// event is something that a function of a component did.
type event struct {
	At   time.Duration
	What string
}

// trial runs a list of components whose functions are replaced, so that they only record what
// happens and take their time. It runs in a bubble of testing/synctest.
type trial struct {
	begin  time.Time
	events chan event
	end    context.CancelFunc // of the context of the server

	// fault is what fails, such as "start store" or "run hub". With "end in store", the context of
	// the server ends during the start of the store, which then fails. With "late end in store" no
	// start fails because of that.
	fault string
	slow  func(name string) time.Duration
}

// errFault is the error of a function that fails in a trial.
var errFault = errors.New("it failed")

// replaced returns list with functions that record. start and stop take a second. A run ends as
// long after its context as slow says. The run that fails does so an hour after it began.
func (r *trial) replaced(list []component) []component {
	list = slices.Clone(list)
	for i := range list {
		c := &list[i]
		if c.start != nil {
			c.start = func(ctx context.Context) error {
				r.record("start " + c.name)
				time.Sleep(time.Second)
				switch r.fault {
				case "late end in " + c.name:
					r.end()
				case "end in " + c.name:
					r.end()
					return ctx.Err()
				}
				return r.failure("start " + c.name)
			}
		}
		if c.run != nil {
			c.run = func(ctx context.Context) error {
				r.record("run " + c.name)
				if err := r.failure("run " + c.name); err != nil {
					time.Sleep(time.Hour)
					return err
				}
				<-ctx.Done()
				r.record("end of run " + c.name)
				time.Sleep(r.slow(c.name))
				r.record("ran " + c.name)
				return ctx.Err()
			}
		}
		if c.stop != nil {
			c.stop = func() error {
				r.record("stop " + c.name)
				time.Sleep(time.Second)
				return r.failure("stop " + c.name)
			}
		}
	}
	return list
}

func (r *trial) record(what string) { r.events <- event{time.Since(r.begin), what} }

func (r *trial) failure(what string) error {
	if r.fault == what {
		return errFault
	}
	return nil
}

// attempt runs list with the function run and the given fault. The context of the server ends after
// two hours. It returns the events, by time and then by text, and the error of run.
func attempt(t *testing.T, list []component, fault string, slow func(string) time.Duration, run func(context.Context, []component) error) (events []event, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeout(t.Context(), 2*time.Hour)
		defer end()
		r := &trial{begin: time.Now(), events: make(chan event, 1000), end: end, fault: fault, slow: slow}
		err = run(ctx, r.replaced(list))
		synctest.Wait()
		close(r.events)
		for e := range r.events {
			events = append(events, e)
		}
	})
	slices.SortFunc(events, func(a, b event) int {
		if a.At != b.At {
			return int(a.At - b.At)
		}
		return strings.Compare(a.What, b.What)
	})
	return events, err
}

// after returns what follows the given text in the events that begin with it, in their order.
func after(events []event, begin string) []string {
	out := []string{}
	for _, e := range events {
		if name, ok := strings.CutPrefix(e.What, begin); ok {
			out = append(out, name)
		}
	}
	return out
}

// TestRunNamesTheComponent: each error names its component. Errors of stop are returned also after
// the end of the server; those of start and run are not.
func TestRunNamesTheComponent(t *testing.T) {
	work := func(context.Context) error { return nil }
	list := []component{
		{name: "a", start: work, run: work, stop: func() error { return nil }},
		{name: "b", start: work, run: work, stop: func() error { return nil }},
	}
	for fault, want := range map[string]string{
		"": "", "start a": "start a: it failed", "start b": "start b: it failed", "run a": "a: it failed", "run b": "b: it failed",
		"stop a": "a: it failed", "stop b": "b: it failed", "end in b": "", "late end in b": "",
	} {
		events, err := attempt(t, list, fault, func(string) time.Duration { return 0 }, run)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want || want != "" && !errors.Is(err, errFault) {
			t.Errorf("%s: %q, want %q", fault, got, want)
		}
		started := after(events, "start ")
		if failed, ok := strings.CutPrefix(fault, "start "); ok {
			started = slices.DeleteFunc(started, func(name string) bool { return name == failed })
		}
		if fault == "end in b" {
			started = []string{"a"}
		}
		slices.Reverse(started)
		if diff := cmp.Diff(started, after(events, "stop ")); diff != "" {
			t.Errorf("%s: stopped otherwise than what was started, in reverse: %s", fault, diff)
		}
	}
}
