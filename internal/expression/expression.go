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

// Errors that callers recognize with errors.Is.
var (
	// ErrInvalid is the error of Compile: the text is not an expression with a boolean result, or
	// exceeds a limit.
	ErrInvalid = errors.New("the expression is not valid")
	// ErrCost is the error of Matches: the evaluation costs too much, on one object or on all objects
	// of a Budget together.
	ErrCost = errors.New("the expression costs too much")
)

// Limits of an expression. Costs are those of CEL; a cost of 1000 takes about a millisecond.
const (
	mostBytes     = 4096      // length of an expression
	mostDepth     = 60        // depth of nested parts
	mostOfOne     = 20_000    // cost of the evaluation of one object
	mostOfAll     = 2_000_000 // cost of all evaluations of a Budget
	interruptions = 100       // steps of a loop between checks of the context
	// mostPattern is the largest number of instructions of a regular expression. Each instruction may
	// run for each character of a text.
	mostPattern = 1000

	longestOfOne = 200 * time.Millisecond // evaluation of one object
	longestOfAll = 5 * time.Second        // all evaluations of a Budget, added up
)

// pricing adds the size of the string or bytes that a call creates to its cost, because they take
// time and memory. Unless their type is known when the expression is compiled, CEL counts them as
// one.
type pricing struct{}

// CallCost implements interpreter.ActualCostEstimator. For a short result it returns nil, which
// means the usual cost.
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
	named   *tree      // the parts of the object that the expression reads
	equal   []Equality // see Equalities
}

// Equality says that the value at a path in the object, or the name of the cluster, equals a text.
// If it does not hold, the expression that has it is false. Search uses it to read fewer objects.
type Equality struct {
	Path  []string // keys in the object; nil: the name of the cluster
	Value string
}

// environment declares the variables of expressions: object, of any type, and cluster, a string.
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

// checkPatterns returns an error for a call of matches in an expression whose pattern is not a
// string literal, is invalid, or is too large. CEL computes the cost of a pattern only from its
// length, and compiles it before it checks a cost.
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

// instructions returns about how many instructions a regular expression compiles to. It does not
// count further than mostPattern+1.
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

// Equalities returns equalities that all must hold for the expression to be true. If they hold, the
// expression may still be false. There may be none. The result must not be changed.
func (e *Expression) Equalities() []Equality { return e.equal }

// Budget adds up what all evaluations of one request cost: the cost that CEL computes and, because
// that can be wrong, the time. Matches returns ErrCost when it is spent. The zero value is an
// unused budget. It is safe for concurrent use.
type Budget struct {
	spent atomic.Uint64 // cost
	took  atomic.Int64  // nanoseconds
}

// Matches reports whether the expression is true for an object, as JSON in body, of a cluster. It
// adds the cost to budget. It is false, without an error, if the object lacks a field that decides.
// The error is ErrCost if the evaluation of this object costs too much or takes too long, or the
// budget is spent. Then the result is unknown, and the caller evaluates no further object. When ctx
// ends, the error is ctx.Err(). A body that is not JSON is another error.
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

// name records in e.named which parts of the object the expression x reads. Of a chain such as
// object.a.b it records the whole path.
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

// operandOf returns what remains of an expression without all selections .a and ["a"] at its end:
// object for object.a["b"].
func operandOf(x ast.Expr) ast.Expr {
	for {
		inner, _, ok := selection(x)
		if !ok {
			return x
		}
		x = inner
	}
}

// selection splits x.a and x["a"] into x and a; false: the expression is not such a selection.
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

// pathOf returns the keys in object.a.b or object.a["b"]; for object itself there are none. x is
// the expression, and operand the result of operandOf for it. pathOf returns false unless operand
// is the variable object.
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

// textOf returns the value of a string literal; false for any other expression.
func textOf(x ast.Expr) (string, bool) {
	if x.Kind() != ast.LiteralKind {
		return "", false
	}
	return asText(x.AsLiteral())
}

// asText returns the Go string of a CEL string; false for a value of another type.
func asText(v ref.Val) (string, bool) {
	s, ok := v.(types.String)
	return string(s), ok
}

// conjuncts records in e.equal the equalities between a path or the cluster and a string literal
// that must hold for x to be true: x itself, or the parts of x that && joins.
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
