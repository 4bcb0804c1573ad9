package route

import (
	"encoding/json"
	"strconv"

	"github.com/scafo/scafo"
)

// appendDocument appends the very bytes that encoding/json makes of the document, in a
// third of its time: a fleet of many applications encodes a megabyte for each change.
// Whatever is not plain text goes through encoding/json itself. The error is of a time
// that JSON cannot say.
func appendDocument(b []byte, doc *scafo.FleetRouting) ([]byte, error) {
	at, err := doc.GeneratedAt.MarshalJSON()
	if err != nil {
		return nil, err
	}
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, int64(doc.V), 10)
	b = appendText(append(b, `,"fleet":`...), doc.Fleet)
	b = append(append(b, `,"generatedAt":`...), at...)
	b = appendText(append(b, `,"node":`...), doc.Node)
	b = appendList(append(b, `,"routes":`...), doc.Routes, func(b []byte, r *scafo.Route) []byte {
		return appendAnswer(b, `{"host":`, r.Host, r.Application, r.Upstreams)
	})
	b = appendList(append(b, `,"wildcards":`...), doc.Wildcards, func(b []byte, w *scafo.WildcardRoute) []byte {
		return appendAnswer(b, `{"base":`, w.Base, w.Application, w.Upstreams)
	})
	b = appendList(append(b, `,"api":`...), doc.API, func(b []byte, a *scafo.APIHost) []byte {
		b = appendText(append(b, `{"host":`...), a.Host)
		return appendUpstreams(b, a.Upstreams)
	})
	b = appendList(append(b, `,"unserved":`...), doc.Unserved, func(b []byte, u *scafo.UnservedHost) []byte {
		b = appendText(append(b, `{"host":`...), u.Host)
		b = appendText(append(b, `,"application":`...), u.Application)
		b = appendText(append(b, `,"reason":`...), u.Reason)
		return append(b, '}')
	})
	return append(b, '}'), nil
}

// appendAnswer appends a route, or a wildcard's: they differ in their first name.
func appendAnswer(b []byte, first, host, application string, ups []scafo.Upstream) []byte {
	b = appendText(append(b, first...), host)
	b = appendText(append(b, `,"application":`...), application)
	return appendUpstreams(b, ups)
}

// appendUpstreams appends the last member of an object, and its end.
func appendUpstreams(b []byte, ups []scafo.Upstream) []byte {
	b = appendList(append(b, `,"upstreams":`...), ups, func(b []byte, u *scafo.Upstream) []byte {
		b = appendText(append(b, `{"node":`...), u.Node)
		b = appendText(append(b, `,"url":`...), u.URL)
		return append(b, '}')
	})
	return append(b, '}')
}

func appendList[T any](b []byte, list []T, one func([]byte, *T) []byte) []byte {
	if list == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, &list[i])
	}
	return append(b, ']')
}

// plain are the bytes that stand for themselves in what encoding/json writes.
var plain = func() (p [256]bool) {
	for c := ' '; c <= '~'; c++ {
		p[c] = c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
	}
	return p
}()

func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if !plain[s[i]] {
			quoted, _ := json.Marshal(s) // of a string it cannot fail
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
