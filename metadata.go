package scafo

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"
)

// DeployHeader is the request header that carries everything about a deploy but
// the artifact and the application's name.
const DeployHeader = "x-scafo-deploy"

// MaxDeployHeader bounds that header, in characters.
const MaxDeployHeader = 8192

// DeployMetadata is what a deploy may say about its application.
type DeployMetadata struct {
	// Replicas is nil where the application keeps what it has.
	Replicas *Replicas
	// NodeSelector is nil where the application keeps what it has. An empty one
	// that is not nil lifts the constraint.
	NodeSelector map[string]string
	Source       *Source
}

// refusedMetadata are the names that a deploy may not say, with the reason.
var refusedMetadata = []struct{ name, why string }{
	{"application", "the application is named by the request path"},
	{"oidc", "provenance is recorded from a verified workload token only"},
}

// ParseDeployHeader reads the value of the [DeployHeader]: unpadded base64url of
// a canonical JSON object (RFC 8785). Every refusal is a malformed request. Names
// that it does not know are ignored.
func ParseDeployHeader(value string) (DeployMetadata, error) {
	raw, err := decodeDeployHeader(value)
	if err != nil {
		return DeployMetadata{}, err
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(raw, &doc); err != nil || doc == nil {
		return DeployMetadata{}, Malformed("%s: the document is no JSON object", DeployHeader)
	}
	for _, r := range refusedMetadata {
		if _, ok := doc[r.name]; ok {
			return DeployMetadata{}, Malformed("%s: %q does not belong there: %s", DeployHeader, r.name, r.why)
		}
	}
	var m DeployMetadata
	if m.Source, err = parseSource(doc["source"]); err != nil {
		return DeployMetadata{}, err
	}
	if v, ok := given(doc, "replicas"); ok {
		m.Replicas = new(Replicas)
		if err := m.Replicas.UnmarshalJSON(v); err != nil {
			return DeployMetadata{}, Malformed(`%s: replicas is "all" or a whole number of at least 1`, DeployHeader)
		}
	}
	if v, ok := given(doc, "nodeSelector"); ok {
		if m.NodeSelector, err = parseSelector(v); err != nil {
			return DeployMetadata{}, err
		}
	}
	return m, nil
}

// decodeDeployHeader checks the encoding, layer by layer, and returns the
// document's bytes.
func decodeDeployHeader(value string) ([]byte, error) {
	if value == "" {
		return nil, Malformed("the %s header is missing", DeployHeader)
	}
	if len(value) > MaxDeployHeader {
		return nil, Malformed("%s is longer than %d characters", DeployHeader, MaxDeployHeader)
	}
	for i := range len(value) {
		// The decoder would skip line breaks: the alphabet is checked first.
		if c := value[i]; !('A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return nil, Malformed("%s is not unpadded base64url", DeployHeader)
		}
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err != nil {
		return nil, Malformed("%s is not unpadded base64url", DeployHeader)
	}
	if !utf8.Valid(raw) {
		return nil, Malformed("%s: the document is not UTF-8", DeployHeader)
	}
	canonical, err := CanonicalJSON(raw)
	if err != nil {
		return nil, Malformed("%s: the document is not JSON", DeployHeader)
	}
	if string(canonical) != string(raw) {
		return nil, Malformed("%s: the document is not canonical JSON (RFC 8785)", DeployHeader)
	}
	return raw, nil
}

// given is the value of a field that is present and not null.
func given(doc map[string]json.RawMessage, name string) (json.RawMessage, bool) {
	v, ok := doc[name]
	return v, ok && string(v) != "null"
}

func parseSelector(v json.RawMessage) (map[string]string, error) {
	var fields map[string]*string
	if err := json.Unmarshal(v, &fields); err != nil || fields == nil {
		return nil, Malformed("%s: nodeSelector is an object of strings", DeployHeader)
	}
	out := make(map[string]string, len(fields))
	for k, s := range fields {
		if s == nil {
			return nil, Malformed("%s: nodeSelector is an object of strings", DeployHeader)
		}
		out[k] = *s
	}
	return out, nil
}

// parseSource reads `source`; v is nil where the document has none.
func parseSource(v json.RawMessage) (*Source, error) {
	if v == nil {
		return nil, nil
	}
	// By hand, since encoding/json would take "Commit" for "commit".
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(v, &doc); err != nil || doc == nil {
		return nil, Malformed("%s: source is no object", DeployHeader)
	}
	if _, ok := doc["oidcSub"]; ok {
		return nil, Malformed("%s: %q does not belong there: %s", DeployHeader, "source.oidcSub", refusedMetadata[1].why)
	}
	var s Source
	for _, f := range []struct {
		name string
		to   *string
	}{{"provider", &s.Provider}, {"repo", &s.Repo}, {"ref", &s.Ref}, {"commit", &s.Commit}} {
		if err := json.Unmarshal(doc[f.name], f.to); err != nil || *f.to == "" {
			return nil, Malformed("%s: source.%s is a string that is not empty", DeployHeader, f.name)
		}
	}
	return &s, nil
}

// Header is the value of the [DeployHeader] that says m. It refuses metadata
// whose header would be longer than a node takes.
func (m DeployMetadata) Header() (string, error) {
	doc := map[string]any{}
	if m.Replicas != nil {
		doc["replicas"] = m.Replicas
	}
	if m.NodeSelector != nil {
		doc["nodeSelector"] = m.NodeSelector
	}
	if m.Source != nil {
		doc["source"] = m.Source
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return "", Wrap(err, CodeInvalidInput, "the deploy's metadata cannot be encoded")
	}
	raw, err = CanonicalJSON(raw)
	if err != nil {
		return "", Wrap(err, CodeInvalidInput, "the deploy's metadata cannot be encoded")
	}
	value := base64.RawURLEncoding.EncodeToString(raw)
	if len(value) > MaxDeployHeader {
		return "", Malformed("the deploy's metadata takes %d characters, %d are the most", len(value), MaxDeployHeader)
	}
	return value, nil
}
