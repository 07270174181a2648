package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestProxiesAreConfined: every reverse proxy of the product has a transport of proxy.Confine,
// so that a server behind it can send clients nothing but content. The package of each proxy
// tests that with proxytest.Check.
func TestProxiesAreConfined(t *testing.T) {
	found := 0
	err := filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testenv/") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok || !isSelector(literal.Type, "httputil", "ReverseProxy") {
				return true
			}
			found++
			for _, e := range literal.Elts {
				field, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				name, ok := field.Key.(*ast.Ident)
				if call, called := field.Value.(*ast.CallExpr); ok && name.Name == "Transport" && called &&
					(isSelector(call.Fun, "proxy", "Confine") || isName(call.Fun, "Confine")) {
					return true
				}
			}
			t.Errorf("%s: the transport of this proxy is not one of proxy.Confine", files.Position(literal.Pos()))
			return true
		})
		return nil
	})
	if err != nil || found == 0 {
		t.Errorf("%d proxies are found, %v", found, err)
	}
}

func isSelector(e ast.Expr, from, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && isName(s.X, from) && s.Sel.Name == name
}

func isName(e ast.Expr, name string) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == name
}
