// Package expression is the filter for programs: a CEL expression over an object of the fleet,
// such as
//
//	object.spec.replicas > 3 && cluster.startsWith("eu-")
//
// An expression is compiled once, and evaluated on the parts of each object that it names,
// within a limit of cost. An object is not selected if it lacks a field that the expression
// reads, or has another type there, unless && or || decide without that field.
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

// Errors for errors.Is.
var (
	// ErrInvalid: the text is not an expression with a boolean result, or breaks a limit.
	ErrInvalid = errors.New("the expression is not valid")
	// ErrCost: the evaluation costs too much, on one object or on all together.
	ErrCost = errors.New("the expression costs too much")
)

// Limits of an expression. Costs are those of CEL; a cost of 1000 takes about a millisecond.
const (
	mostBytes     = 4096
	mostDepth     = 60
	mostOfOne     = 20_000
	mostOfAll     = 2_000_000
	interruptions = 100 // steps of a loop between checks of the context
	// mostPattern bounds the instructions of a regular expression. Each of them may run for each
	// character.
	mostPattern = 1000

	longestOfOne = 200 * time.Millisecond
	longestOfAll = 5 * time.Second // on all processors together
)

// pricing adds the size of created strings and bytes to the cost of a call, because they take
// time and memory. CEL counts them as one unless their type is known at compile time.
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

// Expression is a compiled expression. It is safe for concurrent use.
type Expression struct {
	text    string
	program cel.Program
	named   *tree
	equal   []Equality
}

// Equality is a value that must be equal to a text for the expression to be true.
type Equality struct {
	Path  []string // keys in the object; nil: the name of the cluster
	Value string
}

// environment declares the variables of expressions.
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

// Compile parses and checks an expression. Its errors match ErrInvalid.
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

// checkPatterns refuses regular expressions that are not string literals or are too large. CEL
// computes their cost from the length of the pattern, and compiles them before it checks a
// cost.
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

// instructions returns about how many instructions a regular expression compiles to, at most
// mostPattern+1.
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

// String returns the text from which the expression was compiled.
func (e *Expression) String() string { return e.text }

// Equalities returns equalities that must hold for the expression to be true. They are
// necessary, not sufficient.
func (e *Expression) Equalities() []Equality { return e.equal }

// Budget adds up the cost of all evaluations of one request: the cost that CEL computes and,
// because that can be wrong, the time.
type Budget struct {
	spent atomic.Uint64
	took  atomic.Int64 // nanoseconds
}

// Matches reports whether the expression is true for an object in JSON. After ErrCost the
// result is unknown, and the caller evaluates no further object.
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
	case err != nil: // for example, the object lacks a field
		return false, nil
	}
	return value == types.True, nil
}

// name records which parts of the object the expression reads. It visits the operand of a chain
// of selections once, not once for each selection.
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

// operandOf returns the operand inside all selections .a and ["a"] of an expression.
func operandOf(x ast.Expr) ast.Expr {
	for {
		inner, _, ok := selection(x)
		if !ok {
			return x
		}
		x = inner
	}
}

// selection splits x.a and x["a"] into x and a; false: the expression is no selection.
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

// pathOf returns the path of object.a.b, object.a["b"] and object itself. It returns false
// unless operand, the operand of x, is object.
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

// conjuncts records the equalities that must hold for the expression to be true.
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
