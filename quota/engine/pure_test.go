package engine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// sources parses the package without its tests.
func sources(t *testing.T) map[string]*ast.File {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	set := token.NewFileSet()
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = f
	}
	return files
}

func TestEngineHasNoClockNoRandomnessNoIOAndNoGoroutine(t *testing.T) {
	allowed := map[string]bool{
		`"container/heap"`: true, `"fmt"`: true, `"math"`: true, `"math/bits"`: true,
		`"slices"`: true, `"sort"`: true, `"strconv"`: true, `"strings"`: true, `"time"`: true,
	}
	for name, f := range sources(t) {
		for _, imp := range f.Imports {
			if !allowed[imp.Path.Value] {
				t.Errorf("%s imports %s", name, imp.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.ChanType:
				t.Errorf("%s starts a goroutine or talks to one", name)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" {
					switch n.Sel.Name {
					case "Now", "Since", "Until", "After", "Sleep", "Tick", "NewTimer", "NewTicker", "AfterFunc":
						t.Errorf("%s looks at the clock: time.%s", name, n.Sel.Name)
					}
				}
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "fmt" && strings.HasPrefix(n.Sel.Name, "Print") {
					t.Errorf("%s prints: fmt.%s", name, n.Sel.Name)
				}
			}
			return true
		})
	}
}

func TestEveryPublicNameSaysWhatItMeans(t *testing.T) {
	for name, f := range sources(t) {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && !isPlainMethod(d) {
					t.Errorf("%s: %s has no comment", name, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					checkSpec(t, name, d, spec)
				}
			}
		}
	}
}

// isPlainMethod is a method whose meaning its interface gives: of fmt, sort or
// heap, or of a type that nobody outside can name.
func isPlainMethod(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return false
	}
	r := d.Recv.List[0].Type
	if s, ok := r.(*ast.StarExpr); ok {
		r = s.X
	}
	id, ok := r.(*ast.Ident)
	return d.Name.Name == "String" || ok && !id.IsExported()
}

func checkSpec(t *testing.T, file string, d *ast.GenDecl, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		if d.Doc == nil && s.Doc == nil {
			t.Errorf("%s: type %s has no comment", file, s.Name.Name)
		}
		fields, ok := s.Type.(*ast.StructType)
		if !ok {
			return
		}
		// Fields of small structs are explained by the struct's comment.
		for _, f := range fields.Fields.List {
			for _, n := range f.Names {
				obvious := n.Name == "Name" || n.Name == "ID" || len(fields.Fields.List) <= 3
				if n.IsExported() && f.Doc == nil && f.Comment == nil && !obvious {
					t.Errorf("%s: %s.%s has no comment", file, s.Name.Name, n.Name)
				}
			}
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				t.Errorf("%s: %s has no comment", file, n.Name)
			}
		}
	}
}
