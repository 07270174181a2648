package server

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

// serverList returns the list of the server, in start order. Nothing of it has started.
func serverList(t *testing.T) []component {
	t.Helper()
	list, err := ordered((&server{}).components())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// previously runs the components of the server in the order of the code that had no list. Run
// called the first function, and run the second.
func previously(ctx context.Context, list []component) (err error) {
	at := map[string]component{}
	for _, c := range list {
		at[c.name] = c
	}
	if err := at["hub"].start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, at["hub"].stop()) }()
	if err := previouslyRun(ctx, at); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func previouslyRun(ctx context.Context, at map[string]component) error {
	if err := at["store"].start(ctx); err != nil {
		return err
	}
	defer at["store"].stop()
	if err := at["records"].start(ctx); err != nil {
		return err
	}
	defer at["records"].stop()
	for _, name := range []string{
		"manager", "listener", "enrollment", "member", "provision", "mirror", "template", "binding", "fleet", "failover", "placement",
		"apply", "status", "revision", "rebalance", "website", "console", "fleetapi", "kubeconfig",
	} {
		if err := at[name].start(ctx); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range []string{"manager", "kubeconfig", "fleetapi", "listener", "console", "ready", "hub"} {
		g.Go(func() error { return at[name].run(ctx) })
	}
	return g.Wait()
}

// trials calls f with each fault of each component of list, and with slow runs: those that started
// first take longest, or those that started last do.
func trials(list []component, f func(fault string, slow func(string) time.Duration)) {
	faults := []string{"", "stop hub"} // what stop of the store and of the records returns is nil
	for _, c := range list {
		if c.start != nil {
			faults = append(faults, "start "+c.name, "end in "+c.name, "late end in "+c.name)
		}
		if c.run != nil {
			faults = append(faults, "run "+c.name)
		}
	}
	at := func(name string) time.Duration { return time.Duration(slices.Index(names(list), name)+1) * time.Minute }
	for _, fault := range faults {
		f(fault, at)
		f(fault, func(name string) time.Duration { return time.Hour - at(name) })
	}
}

// TestOrderIsThePrevious: the derived order starts, runs and stops the components of the server at
// the same moments as the code did that had no list, also with slow and failing components. That
// code had no component failover: it is added where its start comes.
func TestOrderIsThePrevious(t *testing.T) {
	list := serverList(t)
	trials(list, func(fault string, slow func(string) time.Duration) {
		want, before := attempt(t, list, fault, slow, previously)
		got, err := attempt(t, list, fault, slow, run)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", fault, diff)
		}
		if (before == nil) != (err == nil) || errors.Is(before, errFault) != errors.Is(err, errFault) {
			t.Errorf("%s: %v, previously %v", fault, err, before)
		}
		if _, name, _ := strings.Cut(fault, " "); err != nil && !strings.Contains(err.Error(), name+": it failed") {
			t.Errorf("%s: the error does not name the component: %v", fault, err)
		}
	})
}

// TestWritesEndFirstAndTheStoreLast checks the invariants of component with the list of the server.
func TestWritesEndFirstAndTheStoreLast(t *testing.T) {
	list := serverList(t)
	trials(list, func(fault string, slow func(string) time.Duration) {
		events, _ := attempt(t, list, fault, slow, run)
		var ended []time.Duration
		stopped := false
		for _, e := range events {
			switch {
			case strings.HasPrefix(e.What, "stop "):
				stopped = true
			case stopped:
				t.Errorf("%s: %q after a component was stopped", fault, e.What)
			case strings.HasPrefix(e.What, "end of run "):
				ended = append(ended, e.At)
			}
		}
		if len(slices.Compact(ended)) > 1 {
			t.Errorf("%s: the contexts of the runs ended at %v, want one moment", fault, ended)
		}
		if stops := after(events, "stop "); !slices.Equal(stops, []string{"records", "store", "hub"}[3-len(stops):]) {
			t.Errorf("%s: stopped %v, want at last the store, and then the hub", fault, stops)
		}
	})

	// All others send requests through the hub, whose fence refuses writes.
	requires := map[string][]string{}
	for _, c := range list { // in start order
		requires[c.name] = slices.Clone(c.requires)
		for _, name := range c.requires {
			requires[c.name] = append(requires[c.name], requires[name]...)
		}
		if c.name != "hub" && !slices.Contains(requires[c.name], "hub") {
			t.Errorf("%s does not require the hub", c.name)
		}
	}
}

// use is what the functions of a component do with the fields of server, by field.
type use struct {
	sets, atStart, later map[string]bool
}

// TestComponentsNameWhatTheyUse reads wiring.go. What start of a component reads was created by
// components that it requires. Other functions may also read what those created that it calls. No
// component requires or calls one that it does not use.
func TestComponentsNameWhatTheyUse(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "wiring.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	methods := map[string]*ast.FuncDecl{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			methods[f.Name.Name] = f
		}
	}
	uses, owner := map[string]use{}, map[string]string{}
	ast.Inspect(methods["components"], func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok || literal.Type != nil { // a component in the list has no type
			return true
		}
		fields := map[string]ast.Expr{}
		for _, e := range literal.Elts {
			pair := e.(*ast.KeyValueExpr)
			fields[pair.Key.(*ast.Ident).Name] = pair.Value
		}
		name, err := strconv.Unquote(fields["name"].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		u := use{sets: map[string]bool{}, atStart: map[string]bool{}, later: map[string]bool{}}
		for _, function := range []string{"start", "run", "stop"} {
			value := fields[function]
			if call, ok := value.(*ast.CallExpr); ok { // atOnce
				value = call.Args[0]
			}
			if method, ok := ofServer(value); ok {
				u.read(methods, methods[method].Body, function != "start")
			}
		}
		for field := range u.sets {
			if other, ok := owner[field]; ok {
				t.Errorf("%s and %s set the field %s", other, name, field)
			}
			owner[field] = name
		}
		uses[name] = u
		return true
	})
	list := serverList(t)
	if diff := cmp.Diff(slices.Sorted(slices.Values(names(list))), slices.Sorted(maps.Keys(uses))); diff != "" {
		t.Fatalf("wiring.go has other components than the list: %s", diff)
	}
	for _, c := range list {
		if by, ok := owner[c.name]; ok && by != c.name {
			t.Errorf("%s sets the field of %s", by, c.name)
		}
		used := map[string]bool{}
		for field := range uses[c.name].atStart {
			if by, ok := owner[field]; ok && by != c.name {
				if used[by] = true; !slices.Contains(c.requires, by) {
					t.Errorf("start of %s uses the field %s of %s, which it does not require", c.name, field, by)
				}
			}
		}
		for field := range uses[c.name].later {
			if by, ok := owner[field]; ok && by != c.name {
				if used[by] = true; !slices.Contains(c.requires, by) && !slices.Contains(c.calls, by) {
					t.Errorf("%s uses the field %s of %s, which it neither requires nor calls", c.name, field, by)
				}
			}
		}
		for _, name := range slices.Concat(c.requires, c.calls) {
			if !used[name] {
				t.Errorf("%s requires or calls %s, and does not use it", c.name, name)
			}
		}
	}
}

// read adds the fields of s that a function body sets and reads, also in methods of s that it
// calls. Functions in the body are called later.
func (u *use) read(methods map[string]*ast.FuncDecl, body ast.Node, later bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			u.read(methods, n.Body, true)
			return false
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if field, ok := ofServer(left); ok {
					u.sets[field] = true
				}
			}
		case *ast.SelectorExpr:
			field, ok := ofServer(n)
			if !ok {
				return true
			}
			if method := methods[field]; method != nil {
				u.read(methods, method.Body, later)
			} else if later {
				u.later[field] = true
			} else {
				u.atStart[field] = true
			}
		}
		return true
	})
}

// ofServer returns the field or method of an expression such as s.store.
func ofServer(e ast.Expr) (string, bool) {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	s, ok := selector.X.(*ast.Ident)
	return selector.Sel.Name, ok && s.Name == "s"
}
