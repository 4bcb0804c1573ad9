package scafo

// MaxHintKeys bounds the keys of one hint. A node with more to say says it in
// several.
const MaxHintKeys = 256

// PeerHint is the body of POST /v1/peer/hints: a node tells another which
// documents changed, so that nothing waits for the next look at the revision. A
// hint may be lost; the bucket is the truth.
type PeerHint struct {
	Keys  []string   `json:"keys,omitempty"`
	Await *PeerAwait `json:"await,omitempty"`
}

// PeerAwait asks the node to answer once its process of the application serves
// that version, refuses it, or is none of its business any more, and at the
// latest after TimeoutMS.
type PeerAwait struct {
	Application string `json:"application"`
	Version     string `json:"version"`
	DeploySeq   int64  `json:"deploySeq"`
	TimeoutMS   int64  `json:"timeoutMs"`
}

// PeerAnswer is what the node answers: its processes, as they are now.
type PeerAnswer struct {
	Node      string          `json:"node"`
	Draining  bool            `json:"draining,omitempty"`
	Processes []ProcessStatus `json:"processes"`
}
