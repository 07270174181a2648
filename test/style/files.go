package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Widths in characters. A tab is one.
const (
	commentWidth  = 100
	markdownWidth = 120
)

// columns is the key of lines that are too wide, beside the keys of rules.
const columns = "columns"

// finding is one refused word, or one line that is too wide.
type finding struct {
	file string
	line int
	key  string
	says string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.says) }

// scanner reads files and keeps what it finds in them.
type scanner struct {
	names, text matcher
	instead     map[string]string // by key: the word to use
	packages    map[string]bool   // directory and package name, once counted
	found       []finding
}

// scan reads the files that have names, comments or text of ours, and returns the findings by file
// and line.
func scan(files fs.FS, listed []string) ([]finding, error) {
	s := &scanner{instead: map[string]string{}, packages: map[string]bool{}}
	all := append(slices.Clone(glossary), plain...)
	s.names, s.text = matchers(all...)
	for _, c := range all {
		s.instead[c.key()] = c.word
	}
	slices.Sort(listed)
	for _, file := range slices.Compact(listed) {
		read := s.reader(file)
		if read == nil {
			continue
		}
		content, err := fs.ReadFile(files, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted in the work tree, and not yet in git
		}
		if err != nil {
			return nil, err
		}
		if err := read(file, content); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	slices.SortStableFunc(s.found, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	return s.found, nil
}

// reader returns what reads a file, or nil if the file is not checked.
func (s *scanner) reader(file string) func(string, []byte) error {
	switch path.Ext(file) {
	case ".go":
		return s.goFile
	case ".md":
		if strings.HasPrefix(file, "docs/reference/") {
			return nil // written from the comments in api/
		}
		return s.markdown
	case ".ts", ".tsx", ".mjs":
		if strings.HasPrefix(file, "web/") {
			return s.web
		}
	}
	return nil
}

// goFile reads the names that a Go file declares, its comments, and its own name. Files that a
// generator wrote are left out. Strings are not read: many are API words, or what others print.
func (s *scanner) goFile(file string, content []byte) error {
	fset := gotoken.NewFileSet()
	f, err := parser.ParseFile(fset, file, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if ast.IsGenerated(f) {
		return nil
	}
	line := func(p gotoken.Pos) int { return fset.PositionFor(p, false).Line }
	s.hits(file, s.names.find(nameTokens(strings.TrimSuffix(path.Base(file), ".go"), 1)), "the file name")
	if name := path.Dir(file) + " " + strings.TrimSuffix(f.Name.Name, "_test"); !s.packages[name] {
		s.packages[name] = true
		s.name(file, f.Name.Name, line(f.Name.Pos()))
	}
	for _, name := range declared(f) {
		s.name(file, name.Name, line(name.Pos()))
	}
	lines := strings.Split(string(content), "\n")
	for _, group := range f.Comments {
		var tokens []token
		for _, c := range group.List {
			for i, text := range strings.Split(c.Text, "\n") {
				n := line(c.Pos()) + i
				text = strings.TrimSpace(commentMarks.ReplaceAllString(text, ""))
				if text == "" || directive.MatchString(c.Text) {
					tokens = append(tokens, token{line: n})
					continue
				}
				tokens = textTokens(tokens, withoutCode(text), n)
				if strings.Contains(text, " ") {
					s.width(file, lines[n-1], n, commentWidth)
				}
			}
		}
		s.hits(file, s.text.find(tokens), "")
	}
	return nil
}

// Marks of comments, and comments that programs read: //go:embed, //nolint, // +optional. A
// directive is one line, so it is never too wide.
var (
	commentMarks = regexp.MustCompile(`^\s*(//|/\*+|\*+/|\*+\s)|\*/\s*$`)
	directive    = regexp.MustCompile(`^//([a-z]+:[a-z]|nolint\b| ?\+[a-z])`)
)

// declared returns the names that a file declares. Fields with a JSON name and constants that are
// named after their value are left out: they are API.
func declared(f *ast.File) (names []*ast.Ident) {
	variables := func(expressions ...ast.Expr) {
		for _, e := range expressions {
			if name, ok := e.(*ast.Ident); ok {
				names = append(names, name)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			if n.Name != nil {
				names = append(names, n.Name)
			}
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i >= len(n.Values) || !isAPIWord(name, n.Values[i]) {
					names = append(names, name)
				}
			}
		case *ast.Field:
			if n.Tag == nil || !strings.Contains(n.Tag.Value, "json:") {
				names = append(names, n.Names...)
			}
		case *ast.LabeledStmt:
			names = append(names, n.Label)
		case *ast.AssignStmt:
			if n.Tok == gotoken.DEFINE {
				variables(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == gotoken.DEFINE {
				variables(n.Key, n.Value)
			}
		}
		return true
	})
	return names
}

// isAPIWord reports whether a name ends with its string, as ReasonNoRoom = "NoRoom" does.
func isAPIWord(name *ast.Ident, value ast.Expr) bool {
	literal, ok := value.(*ast.BasicLit)
	if !ok || literal.Kind != gotoken.STRING {
		return false
	}
	text, err := strconv.Unquote(literal.Value)
	return err == nil && text != "" && strings.HasSuffix(name.Name, text)
}

// markdown reads the text of a document, without code. Tables and headings cannot be wrapped, so
// they may be wide. The guide itself lists the words, so only its width counts.
func (s *scanner) markdown(file string, content []byte) error {
	var tokens []token
	fence := ""
	for i, text := range strings.Split(string(content), "\n") {
		trimmed := strings.TrimSpace(text)
		mark := codeFence.FindString(trimmed)
		switch {
		case fence == "" && mark != "":
			fence = mark
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
			continue
		}
		if trimmed == "" || mark != "" {
			tokens = append(tokens, token{line: i + 1})
			continue
		}
		tokens = textTokens(tokens, withoutCode(text), i+1)
		if !strings.ContainsAny(trimmed[:1], "|#") && canWrap(text) {
			s.width(file, text, i+1, markdownWidth)
		}
	}
	if file != guideFile {
		s.hits(file, s.text.find(tokens), "")
	}
	return nil
}

var (
	codeFence  = regexp.MustCompile("^(```+|~~~+)")
	listMarker = regexp.MustCompile(`^[\s>]*([-*+]|\d+\.)?\s*`)
)

// canWrap reports whether a line of Markdown has a blank at which it could end early enough.
func canWrap(line string) bool {
	text := line[len(listMarker.FindString(line)):]
	blank := strings.IndexAny(text, " \t")
	return blank >= 0 && blank < markdownWidth
}

// web reads the lines of a source file of the console: its code, its texts and its comments, for
// it has no parser of TypeScript. Only comments that are alone on their lines may not be wide.
func (s *scanner) web(file string, content []byte) error {
	for i, text := range strings.Split(string(content), "\n") {
		trimmed := strings.TrimSpace(text)
		if strings.HasPrefix(trimmed, "import ") {
			continue
		}
		s.hits(file, s.text.find(textTokens(nil, text, i+1)), "")
		if webComment.MatchString(trimmed) {
			s.width(file, text, i+1, commentWidth)
		}
	}
	return nil
}

var webComment = regexp.MustCompile(`^(//|/\*|\*)\s*\S+\s`)

// name keeps the refused words of a name.
func (s *scanner) name(file, name string, line int) {
	s.hits(file, s.names.find(nameTokens(name, line)), "the name "+name)
}

// hits keeps refused words. They are in a name that where describes, or in text if where is empty.
func (s *scanner) hits(file string, hits []hit, where string) {
	for _, h := range hits {
		says := fmt.Sprintf("%q", h.phrase)
		if where != "" {
			says += " in " + where
		}
		s.found = append(s.found, finding{file: file, line: h.line, key: h.key, says: says + "; write: " + s.instead[h.key]})
	}
}

// width keeps a line that is too wide.
func (s *scanner) width(file, text string, line, most int) {
	if n := utf8.RuneCountInString(strings.TrimRight(text, " \t\r")); n > most {
		s.found = append(s.found, finding{file: file, line: line, key: columns, says: fmt.Sprintf("%d columns, want at most %d", n, most)})
	}
}
