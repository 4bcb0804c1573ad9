package scafo

// PeerHint is what one node tells another (POST /v1/peer/hints): which documents
// changed, and optionally which version the answer should wait for. It may be
// lost; the bucket is the truth.
type PeerHint struct {
	Keys  []string   `json:"keys"`
	Await *PeerAwait `json:"await,omitempty"`
}

// PeerAwait asks for an answer only once the node serves, or has refused, a
// version of an application, or the time is over.
type PeerAwait struct {
	Application string `json:"application"`
	Version     string `json:"version"`
	DeploySeq   int64  `json:"deploySeq"`
	TimeoutMS   int64  `json:"timeoutMs"`
}

// PeerAnswer is the answering node's processes, with the versions that they serve.
type PeerAnswer struct {
	Node      string          `json:"node"`
	Processes []ProcessStatus `json:"processes"`
}

// Health is the answer of GET /.well-known/scafo/health.
type Health struct {
	OK      bool   `json:"ok"`
	Version string `json:"version"`
	Node    string `json:"node"`
}

// HealthPath is where a node answers its health, without a token.
const HealthPath = "/.well-known/scafo/health"

// ForwardedForHeader is set by a node that hands a request on to the coordinator: it
// names who made it, and has the receiving node hand it on no further.
const ForwardedForHeader = "X-Scafo-Forwarded-For"
