package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// SourceMap leads from positions in the bundle back to the project's files.
type SourceMap struct {
	// Text is the map itself, in JSON.
	Text []byte

	module   string
	sources  []string
	segments [][]segment // by line of the bundle, sorted by column
}

// segment says that the bundle's text from column on comes from a place in a
// source. All count from 0.
type segment struct {
	column, source, line, sourceColumn int32
}

// ParseSourceMap reads a source map of version 3 of the module of that name.
func ParseSourceMap(module string, text []byte) (*SourceMap, error) {
	var doc struct {
		Version  int
		Sources  []string
		Mappings string
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("source map: %w", err)
	}
	if doc.Version != 3 {
		return nil, fmt.Errorf("source map of version %d", doc.Version)
	}
	m := &SourceMap{Text: text, module: module, sources: doc.Sources}
	var last segment
	for line := range strings.SplitSeq(doc.Mappings, ";") {
		var segments []segment
		last.column = 0
		for s := range strings.SplitSeq(line, ",") {
			if s == "" {
				continue
			}
			n, err := vlq(s)
			if err != nil {
				return nil, err
			}
			last.column += n[0]
			if len(n) < 4 {
				continue
			}
			last.source, last.line, last.sourceColumn = last.source+n[1], last.line+n[2], last.sourceColumn+n[3]
			if last.source >= 0 && int(last.source) < len(m.sources) {
				segments = append(segments, last)
			}
		}
		m.segments = append(m.segments, segments)
	}
	return m, nil
}

const base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// vlq decodes the numbers of one segment: five bits a digit, the lowest first,
// the sixth says that more follow, and the lowest bit of a number is its sign.
func vlq(s string) ([]int32, error) {
	var out []int32
	value, shift := int32(0), 0
	for i := range len(s) {
		d := strings.IndexByte(base64Digits, s[i])
		if d < 0 || shift > 30 {
			return nil, errors.New("source map: a segment cannot be read")
		}
		value |= int32(d&31) << shift //nolint:gosec // five bits
		if shift += 5; d&32 != 0 {
			continue
		}
		if value&1 != 0 {
			out = append(out, -(value >> 1))
		} else {
			out = append(out, value>>1)
		}
		value, shift = 0, 0
	}
	if shift != 0 || len(out) == 0 {
		return nil, errors.New("source map: a segment ends early")
	}
	return out, nil
}

// position finds the source of a place in the bundle; lines and columns count
// from 1.
func (m *SourceMap) position(line, column int) (string, bool) {
	if line < 1 || line > len(m.segments) {
		return "", false
	}
	segments := m.segments[line-1]
	i := sort.Search(len(segments), func(i int) bool { return int(segments[i].column) > column-1 }) - 1
	if i < 0 {
		return "", false
	}
	s := segments[i]
	return fmt.Sprintf("%s:%d:%d", m.sources[s.source], s.line+1, s.sourceColumn+1), true
}

var place = regexp.MustCompile(`([A-Za-z0-9_./-]+):(\d+):(\d+)`)

// Rewrite replaces places in the bundle by those in the project's files.
func (m *SourceMap) Rewrite(text string) string {
	if m == nil {
		return text
	}
	return place.ReplaceAllStringFunc(text, func(s string) string {
		p := place.FindStringSubmatch(s)
		line, err1 := strconv.Atoi(p[2])
		column, err2 := strconv.Atoi(p[3])
		if p[1] != m.module || err1 != nil || err2 != nil {
			return s
		}
		if at, ok := m.position(line, column); ok {
			return at
		}
		return s
	})
}
