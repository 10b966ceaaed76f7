package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is the text of a configuration, to tell the line of a field. The
// zero value knows no lines.
type document struct {
	root  *yaml.Node
	lines []string
}

func readDocument(data []byte) document {
	var root yaml.Node
	if yaml.Unmarshal(data, &root) != nil || len(root.Content) == 0 {
		return document{}
	}
	return document{root: root.Content[0], lines: strings.Split(string(data), "\n")}
}

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	// Line in the file, from 1; 0 where none is known.
	Line int
	// Text is what stands in that line.
	Text string
	// Reason names the field and says what is wrong with it.
	Reason string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return p.Reason
	}
	return fmt.Sprintf("line %d (%s): %s", p.Line, p.Text, p.Reason)
}

// Error is everything that is wrong with a configuration.
type Error []Problem

func (e Error) Error() string {
	var out []string
	for _, p := range e {
		out = append(out, p.String())
	}
	return strings.Join(out, "; ")
}

// problem points at a field such as nodeGroups[0].memory, or at the deepest
// part of that path which is there.
func (d document) problem(path, reason string) Problem {
	n := d.root
	for _, step := range steps(path) {
		next := child(n, step)
		if next == nil {
			break
		}
		n = next
	}
	return d.at(n, reason)
}

func (d document) at(n *yaml.Node, reason string) Problem {
	if n == nil || n == d.root || n.Line < 1 || n.Line > len(d.lines) {
		return Problem{Reason: reason}
	}
	return Problem{Line: n.Line, Text: strings.TrimSpace(d.lines[n.Line-1]), Reason: reason}
}

// wrongType finds the field that a JSON decoder complains of. It knows the
// names on the way, not the places in lists.
func (d document) wrongType(err *json.UnmarshalTypeError) Problem {
	reason := fmt.Sprintf("%s: is a %s, must be of type %s", err.Field, err.Value, err.Type)
	if d.root == nil {
		return Problem{Reason: reason}
	}
	nodes := []*yaml.Node{d.root}
	for _, name := range strings.Split(err.Field, ".") {
		var next []*yaml.Node
		for _, n := range nodes {
			parts := []*yaml.Node{n}
			if n.Kind == yaml.SequenceNode {
				parts = n.Content
			}
			for _, part := range parts {
				if c := child(part, name); c != nil {
					next = append(next, c)
				}
			}
		}
		nodes = next
	}
	kind, _, _ := strings.Cut(err.Value, " ")
	i := slices.IndexFunc(nodes, func(n *yaml.Node) bool { return jsonKind(n) == kind })
	if i < 0 {
		return Problem{Reason: reason}
	}
	return d.at(nodes[i], reason)
}

// jsonKind is the word by which a JSON decoder calls what a node becomes.
func jsonKind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "object"
	case n.Kind == yaml.SequenceNode:
		return "array"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "number"
	case n.Tag == "!!bool":
		return "bool"
	}
	return "string"
}

// steps takes a path of package field apart. Keys of maps stand in brackets and
// may have dots.
func steps(path string) []string {
	var out []string
	var step strings.Builder
	end := func() {
		if step.Len() > 0 {
			out = append(out, step.String())
			step.Reset()
		}
	}
	inside := false
	for _, c := range path {
		switch {
		case c == '.' && !inside:
			end()
		case c == '[':
			end()
			inside = true
		case c == ']':
			end()
			inside = false
		default:
			step.WriteRune(c)
		}
	}
	end()
	return out
}

// child is a member of a mapping by name, or of a list by place.
func child(n *yaml.Node, step string) *yaml.Node {
	if n == nil {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == step {
				return n.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i]
		}
	case yaml.AliasNode:
		return child(n.Alias, step)
	}
	return nil
}
