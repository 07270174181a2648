// Package expression is the filter for programs: a CEL expression over an object of the fleet, such as
// object.spec.replicas > 3 && cluster.startsWith("eu-").
//
// It is compiled once, and evaluated on what it names of each object, within a bound. An object that does not have what the
// expression asks for, or has another type there, is not selected, as far as CEL's && and || leave that open.
package expression

import (
	"context"
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Errors that callers tell apart.
var (
	// ErrInvalid: it is no expression that is true or false of an object.
	ErrInvalid = errors.New("the expression is not valid")
	// ErrCost: it does too much, on one object or on all together.
	ErrCost = errors.New("the expression costs too much")
)

// Bounds of an expression. Costs are CEL's; a thousand are about a millisecond.
const (
	mostBytes     = 4096
	mostDepth     = 60
	mostOfOne     = 20_000
	mostOfAll     = 2_000_000
	interruptions = 100  // steps of a loop between looks at the context
	mostPattern   = 1000 // instructions of a regular expression, each of which may be run for each character

	longestOfOne = 200 * time.Millisecond
	longestOfAll = 5 * time.Second // of all processors together
)

// pricing has texts that are made cost what they take, of memory too: CEL counts them as one, unless their type was known before.
type pricing struct{}

// CallCost implements interpreter.ActualCostEstimator.
func (pricing) CallCost(_, _ string, _ []ref.Val, result ref.Val) *uint64 {
	var size int
	switch made := result.(type) {
	case types.String:
		size = len(made)
	case types.Bytes:
		size = len(made)
	}
	const free, each = 1000, 1000
	if size < free {
		return nil
	}
	cost := uint64(1 + size/each)
	return &cost
}

// Expression is compiled. It may be used by several goroutines at once.
type Expression struct {
	text    string
	program cel.Program
	named   *tree
	equal   []Equality
}

// Equality is what must be equal to a text for the expression to be true.
type Equality struct {
	Path  []string // keys in the object; nil: the cluster
	Value string
}

// environment has what an expression may name.
var environment = func() *cel.Env {
	env, err := cel.NewEnv(
		cel.Variable("object", cel.DynType), cel.Variable("cluster", cel.StringType),
		cel.CrossTypeNumericComparisons(true), cel.ParserRecursionLimit(mostDepth), cel.ParserExpressionSizeLimit(mostBytes),
	)
	if err != nil {
		panic(err)
	}
	return env
}()

// Compile checks an expression.
func Compile(text string) (*Expression, error) {
	if len(text) > mostBytes || !utf8.ValidString(text) {
		return nil, fmt.Errorf("%w: it must be text of at most %d bytes", ErrInvalid, mostBytes)
	}
	checked, issues := environment.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if !checked.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%w: it is a %s, and must be true or false: compare it with something, as in object.spec.replicas > 3", ErrInvalid, checked.OutputType())
	}
	if err := checkPatterns(checked.NativeRep().Expr()); err != nil {
		return nil, err
	}
	program, err := environment.Program(checked,
		cel.EvalOptions(cel.OptOptimize), cel.CostTracking(pricing{}), cel.CostLimit(mostOfOne), cel.InterruptCheckFrequency(interruptions))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	e := &Expression{text: text, program: program, named: &tree{}}
	root := checked.NativeRep().Expr()
	e.name(root)
	e.conjuncts(root)
	return e, nil
}

// checkPatterns refuses regular expressions that are not written down, or are large: CEL prices them by their text, and compiles them before anything is asked.
func checkPatterns(root ast.Expr) (err error) {
	ast.PreOrderVisit(root, ast.NewExprVisitor(func(x ast.Expr) {
		if x.Kind() != ast.CallKind || x.AsCall().FunctionName() != overloads.Matches || err != nil {
			return
		}
		args := x.AsCall().Args()
		text, ok := textOf(args[len(args)-1])
		if !ok {
			err = fmt.Errorf("%w: matches takes a pattern that is written down, in quotes", ErrInvalid)
			return
		}
		pattern, wrong := syntax.Parse(text, syntax.Perl)
		switch {
		case wrong != nil:
			err = fmt.Errorf("%w: %w", ErrInvalid, wrong)
		case instructions(pattern) > mostPattern:
			err = fmt.Errorf("%w: the pattern %.40q is too large: it may have repetitions of fewer", ErrInvalid, text)
		}
	}))
	return err
}

// instructions is about how many a regular expression is compiled to; of one that is too large, at least as many as show that.
func instructions(pattern *syntax.Regexp) int {
	n := 1 + len(pattern.Rune)
	for _, part := range pattern.Sub {
		n = min(n+instructions(part), mostPattern+1)
	}
	if pattern.Op == syntax.OpRepeat {
		n *= max(pattern.Min, pattern.Max, 1)
	}
	return min(n, mostPattern+1)
}

// String is the expression as it was written.
func (e *Expression) String() string { return e.text }

// Equalities are what must be equal to a text. There is more to an expression than these.
func (e *Expression) Equalities() []Equality { return e.equal }

// Budget is what the evaluations of one request may cost together: by CEL's prices, and, for what these are wrong of, in time.
type Budget struct {
	spent atomic.Uint64
	took  atomic.Int64 // nanoseconds
}

// Matches says whether the expression is true of an object, which is JSON. ErrCost: it is not known, and is not to be asked of more.
func (e *Expression) Matches(ctx context.Context, cluster string, body []byte, budget *Budget) (bool, error) {
	object, err := e.named.read(body)
	if err != nil {
		return false, fmt.Errorf("read the object: %w", err)
	}
	one, cancel := context.WithTimeout(ctx, longestOfOne)
	defer cancel()
	began := time.Now()
	value, details, err := e.program.ContextEval(one, map[string]any{"object": object, "cluster": cluster})
	if budget.took.Add(int64(time.Since(began))) > int64(longestOfAll) {
		return false, fmt.Errorf("%w on all objects together; narrow them by kind, namespace, label or cluster first", ErrCost)
	}
	if details != nil && details.ActualCost() != nil && budget.spent.Add(*details.ActualCost()) > mostOfAll {
		return false, fmt.Errorf("%w on all objects together; narrow them by kind, namespace, label or cluster first", ErrCost)
	}
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil && (one.Err() != nil || strings.Contains(err.Error(), "cost limit exceeded")):
		return false, fmt.Errorf("%w on one object; it may have fewer loops in each other", ErrCost)
	case err != nil: // the object does not have what is asked for
		return false, nil
	}
	return value == types.True, nil
}

// name notes what the expression names of the object. What is inside selections is looked at once,
// however many there are.
func (e *Expression) name(x ast.Expr) {
	inner := operandOf(x)
	if path, ok := pathOf(x, inner); ok {
		e.named.add(path)
		return
	}
	x = inner
	switch x.Kind() {
	case ast.CallKind:
		if x.AsCall().IsMemberFunction() {
			e.name(x.AsCall().Target())
		}
		for _, arg := range x.AsCall().Args() {
			e.name(arg)
		}
	case ast.ListKind:
		for _, one := range x.AsList().Elements() {
			e.name(one)
		}
	case ast.MapKind:
		for _, entry := range x.AsMap().Entries() {
			e.name(entry.AsMapEntry().Key())
			e.name(entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, field := range x.AsStruct().Fields() {
			e.name(field.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := x.AsComprehension()
		for _, part := range []ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()} {
			e.name(part)
		}
	case ast.IdentKind, ast.LiteralKind, ast.SelectKind, ast.UnspecifiedExprKind:
	}
}

// operandOf is what is inside all selections .a and ["a"] of an expression.
func operandOf(x ast.Expr) ast.Expr {
	for {
		inner, _, ok := selection(x)
		if !ok {
			return x
		}
		x = inner
	}
}

// selection splits x.a and x["a"]; false: it is neither.
func selection(x ast.Expr) (inner ast.Expr, key string, ok bool) {
	switch x.Kind() {
	case ast.SelectKind:
		return x.AsSelect().Operand(), x.AsSelect().FieldName(), true
	case ast.CallKind:
		call := x.AsCall()
		if call.FunctionName() != operators.Index || len(call.Args()) != 2 {
			return nil, "", false
		}
		key, ok = textOf(call.Args()[1])
		return call.Args()[0], key, ok
	default:
		return nil, "", false
	}
}

// pathOf is the path of object.a.b, object.a["b"] and object itself. The operand of the path has to
// be object.
func pathOf(x, operand ast.Expr) (path []string, ok bool) {
	if operand.Kind() != ast.IdentKind || operand.AsIdent() != "object" {
		return nil, false
	}
	for inner, key, more := selection(x); more; inner, key, more = selection(inner) {
		path = append(path, key)
	}
	slices.Reverse(path)
	return path, true
}

func textOf(x ast.Expr) (string, bool) {
	if x.Kind() != ast.LiteralKind {
		return "", false
	}
	return asText(x.AsLiteral())
}

func asText(v ref.Val) (string, bool) {
	s, ok := v.(types.String)
	return string(s), ok
}

// conjuncts notes the equalities without which the expression is not true.
func (e *Expression) conjuncts(x ast.Expr) {
	if x.Kind() != ast.CallKind {
		return
	}
	call := x.AsCall()
	switch call.FunctionName() {
	case operators.LogicalAnd:
		for _, arg := range call.Args() {
			e.conjuncts(arg)
		}
	case operators.Equals:
		for i, side := range call.Args() {
			value, ok := textOf(call.Args()[1-i])
			if !ok {
				continue
			}
			if side.Kind() == ast.IdentKind && side.AsIdent() == "cluster" {
				e.equal = append(e.equal, Equality{nil, value})
			} else if path, ok := pathOf(side, operandOf(side)); ok && len(path) > 0 {
				e.equal = append(e.equal, Equality{path, value})
			}
		}
	}
}
