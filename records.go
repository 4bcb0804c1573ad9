package scafo

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
)

// FormatVersion is the `v` of every document that this release writes. A
// document with a greater one is left alone and reported.
const FormatVersion = 1

// Header is what every document of the registry begins with.
type Header struct {
	V int `json:"v"`
	// Write is random and new at every write: it tells a lost response from
	// somebody else's success, and keeps an ETag from ever repeating.
	Write string `json:"write,omitempty"`
}

// GetHeader lets generic code reach the header of any document.
func (h *Header) GetHeader() *Header { return h }

// Role is the tier of an operator's key.
type Role string

// The two tiers.
const (
	RoleAdmin    Role = "admin"
	RoleOperator Role = "operator"
)

// PublicKey is an Ed25519 public key as a JWK (RFC 8037).
type PublicKey struct {
	Kty string `json:"kty"` // "OKP"
	Crv string `json:"crv"` // "Ed25519"
	X   string `json:"x"`   // base64url without padding, 32 bytes
}

// Operator is the record of a trusted operator key: TrustedOperator.
type Operator struct {
	Header
	ID           string    `json:"id"`
	PublicKey    PublicKey `json:"publicKey"`
	Role         Role      `json:"role"`
	Applications Scope     `json:"applications"`
	Supersedes   string    `json:"supersedes,omitempty"`
	CreatedAt    time.Time `json:"createdAt"`
	CreatedBy    string    `json:"createdBy,omitempty"`
}

// OperatorIndex lists every operator's id and role. A removal changes it first,
// so that two removals at once cannot take the last key or the last admin.
type OperatorIndex struct {
	Header
	Operators map[string]Role `json:"operators"`
	// Removing are the removals that have begun, by id: the write nonce of the
	// record that is going. It keeps a registration that comes in between from
	// listing a key that is gone a moment later.
	Removing map[string]string `json:"removing,omitempty"`
}

// IDClaim claims an id in the keyspace that operators and nodes share. It stays
// for good.
type IDClaim struct {
	Header
	ID        string    `json:"id"`
	Kind      string    `json:"kind"` // "operator" or "node"
	PublicKey PublicKey `json:"publicKey"`
}

// Fleet says which fleet this bucket holds. Created once, by `scafo init`.
type Fleet struct {
	Header
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"createdAt"`
	// Founder is the first admin's key. It stands here so that the fleet and the
	// trust in its first key begin with one write.
	Founder Operator `json:"founder"`
}

// Node is the registry's record of a machine: NodeRecord.
type Node struct {
	Header
	ID           string            `json:"id"`
	PublicKey    PublicKey         `json:"publicKey"`
	Address      string            `json:"address"` // base URL of its API for other nodes
	Labels       map[string]string `json:"labels,omitempty"`
	Version      string            `json:"version"`
	RegisteredAt time.Time         `json:"registeredAt"`
	Drain        *Stamp            `json:"drain,omitempty"`
	Removed      *Stamp            `json:"removed,omitempty"`
}

// Stamp says when something was decided, and by which operator or node.
type Stamp struct {
	At time.Time `json:"at"`
	By string    `json:"by"`
}

// Heartbeat is what a node says of itself.
type Heartbeat struct {
	Header
	Node         string          `json:"node"`
	At           time.Time       `json:"at"`
	BootID       string          `json:"bootId"`
	CelldVersion string          `json:"celldVersion,omitempty"`
	Processes    []ProcessStatus `json:"processes"`
	Draining     bool            `json:"draining,omitempty"`
	// NoRunner is set by a node that runs no applications (celld.command: none).
	NoRunner bool `json:"noRunner,omitempty"`
}

// ProcessState is where a runtime process is in its life.
type ProcessState string

// The states of a process.
const (
	ProcessStarting ProcessState = "starting"
	ProcessReady    ProcessState = "ready"
	ProcessDraining ProcessState = "draining"
	ProcessBackoff  ProcessState = "backoff" // waits for its next start: it crashed, or lost its lease
	ProcessStopped  ProcessState = "stopped"
)

// ProcessStatus is one runtime process as its supervisor sees it.
type ProcessStatus struct {
	Application string       `json:"application"`
	UID         string       `json:"uid"`
	State       ProcessState `json:"state"`
	PID         int          `json:"pid,omitempty"`
	URL         string       `json:"url,omitempty"` // where the ingress reaches it
	// Internal is its internal listener, where other nodes reach it.
	Internal   string `json:"internal,omitempty"`
	Deployment string `json:"deployment,omitempty"`
	// Wanted is the version that it was last asked to serve.
	Wanted string `json:"wanted,omitempty"`
	// CelldVersion is what the runtime printed for --version.
	CelldVersion string     `json:"celldVersion,omitempty"`
	StartedAt    *time.Time `json:"startedAt,omitempty"`
	Restarts     int        `json:"restarts"`
	LastExit     *Exit      `json:"lastExit,omitempty"`
	LastLines    []string   `json:"lastLines,omitempty"`
	// Refused is the newest version that this process would not take, with the
	// runtime's own words, while it goes on with Deployment.
	Refused *Refusal `json:"refused,omitempty"`
}

// exitFenced is the exit code of a runtime that lost its lease; an exit that nobody
// saw counts as one.
const exitFenced = 3

// WaitsForLease is whether the next start waits until nothing can hold the last
// process's lease any more. That is no crash.
func (p ProcessStatus) WaitsForLease() bool {
	return p.State == ProcessBackoff && p.LastExit != nil && p.LastExit.Signal == "" && p.LastExit.Code == exitFenced
}

// Refusal says why a runtime did not take a version.
type Refusal struct {
	Version string `json:"version"`
	Detail  string `json:"detail"`
}

// Exit says how a process ended: by exit code, or by a signal.
type Exit struct {
	Code   int       `json:"code"`
	Signal string    `json:"signal,omitempty"`
	At     time.Time `json:"at"`
	// Version is the one that was wanted when the process was started: how it ended
	// says nothing of any other. Empty where nobody knows.
	Version string `json:"version,omitempty"`
}

// Replicas is how many nodes serve an application: a number of at least 1, or
// all of them.
type Replicas struct {
	All   bool
	Count int
}

// String is "all" or the number.
func (r Replicas) String() string {
	if r.All {
		return "all"
	}
	return strconv.Itoa(r.Count)
}

// MarshalJSON writes "all" or a number.
func (r Replicas) MarshalJSON() ([]byte, error) {
	if r.All {
		return []byte(`"all"`), nil
	}
	return []byte(strconv.Itoa(r.Count)), nil
}

// UnmarshalJSON takes "all" or a whole number of at least 1, spelled as digits.
func (r *Replicas) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if string(b) == `"all"` {
		*r = Replicas{All: true}
		return nil
	}
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 1 {
		return Errorf(CodeInvalidInput, `replicas is "all" or a whole number of at least 1`)
	}
	*r = Replicas{Count: n}
	return nil
}

// Domain is a host that an application lists as its own.
type Domain struct {
	Host     string `json:"host"`
	Wildcard bool   `json:"wildcard,omitempty"`
}

// MaxDomains bounds the hosts that one application may hold.
const MaxDomains = 64

// Publishing is the slot that the one deploy holds which may publish.
type Publishing struct {
	Deploy string `json:"deploy"` // the deploy's id
	Seq    int64  `json:"seq"`
}

// Deleting marks an application whose deletion has begun.
type Deleting struct {
	Fence int64     `json:"fence"`
	At    time.Time `json:"at"`
	By    string    `json:"by"`
}

// Application is ApplicationRecord.
type Application struct {
	Header
	Name       string            `json:"name"`
	UID        string            `json:"uid"` // random; one life of a name
	CreatedAt  time.Time         `json:"createdAt"`
	CreatedBy  string            `json:"createdBy"`
	Replicas   Replicas          `json:"replicas"`
	Selector   map[string]string `json:"selector,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Blocked    *Stamp            `json:"blocked,omitempty"`
	Retired    *Stamp            `json:"retired,omitempty"`
	Deleting   *Deleting         `json:"deleting,omitempty"`
	DeploySeq  int64             `json:"deploySeq"`
	Publishing *Publishing       `json:"publishing,omitempty"`
	Deployment string            `json:"deployment,omitempty"` // the version that it is
	// DeploymentSeq is the deploySeq of the deploy that recorded Deployment.
	DeploymentSeq int64    `json:"deploymentSeq,omitempty"`
	Domains       []Domain `json:"domains,omitempty"`
}

// Source says which commit a deploy was made from.
type Source struct {
	Provider string `json:"provider"`
	Repo     string `json:"repo"`
	Ref      string `json:"ref"`
	Commit   string `json:"commit"`
}

// Provenance is what a verified workload token said.
type Provenance struct {
	Issuer     string `json:"issuer"`
	Subject    string `json:"subject"`
	Repository string `json:"repository,omitempty"`
	Ref        string `json:"ref,omitempty"`
	Commit     string `json:"commit,omitempty"`
	Run        string `json:"run,omitempty"`
}

// Deployment is a version that celld accepted.
type Deployment struct {
	Header
	Application  string      `json:"application"`
	UID          string      `json:"uid"`
	Version      string      `json:"version"`
	Deploy       string      `json:"deploy"`
	Source       *Source     `json:"source,omitempty"`
	OIDC         *Provenance `json:"oidc,omitempty"`
	ArtifactHash string      `json:"artifactSha256"`
	ArtifactSize int64       `json:"artifactBytes"`
	CelldVersion string      `json:"celldVersion,omitempty"`
	At           time.Time   `json:"at"`
	By           string      `json:"by"`
}

// DeployState is how far a deploy is.
type DeployState string

// The states of a deploy. Deployed and failed are terminal.
const (
	DeployAccepted  DeployState = "accepted"
	DeployUploading DeployState = "uploading"
	DeployDeployed  DeployState = "deployed"
	DeployFailed    DeployState = "failed"
)

// Terminal reports whether the state is the deploy's last.
func (s DeployState) Terminal() bool { return s == DeployDeployed || s == DeployFailed }

// DeployStatus is what a poll of a deploy answers.
type DeployStatus struct {
	ID          string      `json:"id"`
	Application string      `json:"application"`
	State       DeployState `json:"state"`
	Deployment  string      `json:"deployment,omitempty"`
	Code        Code        `json:"code,omitempty"`
	Detail      string      `json:"detail,omitempty"`
	// Step says in a word what a deploy that is not terminal waits for.
	Step  string       `json:"step,omitempty"`
	Nodes []DeployNode `json:"nodes,omitempty"`
	// OIDC is what the workload token said that the caller showed, absent for every
	// other caller. Nothing of it comes from the deploy's metadata.
	OIDC *Provenance `json:"oidc,omitempty"`
	// ArtifactHash is the SHA-256 of the artifact as the node received it, in
	// hexadecimal, and ArtifactSize its bytes.
	ArtifactHash string `json:"artifactSha256,omitempty"`
	ArtifactSize int64  `json:"artifactBytes,omitempty"`
}

// DeployNode is one node's part in a deploy.
type DeployNode struct {
	Node    string `json:"node"`
	Version string `json:"version,omitempty"` // what it serves
	Detail  string `json:"detail,omitempty"`  // why it lags
}

// Deploy is the record of a deploy.
type Deploy struct {
	Header
	DeployStatus
	UID        string     `json:"uid"`
	Seq        int64      `json:"seq"`
	Node       string     `json:"node"` // the node that accepted it
	Caller     string     `json:"caller"`
	AcceptedAt time.Time  `json:"acceptedAt"`
	MovedAt    time.Time  `json:"movedAt"` // when the state last moved, by the accepting node's clock
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	Source     *Source    `json:"source,omitempty"`
	// Previous is the celld pointer as it was before this deploy published, so
	// that it can be put back: its bytes in a JSON string, null when there was
	// none, and absent until the deploy begins to publish.
	Previous json.RawMessage `json:"previous,omitempty"`
	// PreviousDeployment and PreviousSeq are what the application's record said of
	// its deployment then.
	PreviousDeployment string `json:"previousDeployment,omitempty"`
	PreviousSeq        int64  `json:"previousSeq,omitempty"`
}

// Placement is the coordinator's decision for one application.
type Placement struct {
	Header
	Application string    `json:"application"`
	UID         string    `json:"uid"`
	Nodes       []string  `json:"nodes"` // an empty list is a decision too
	Fence       int64     `json:"fence"`
	DeploySeq   int64     `json:"deploySeq"` // the one that the coordinator saw
	DecidedAt   time.Time `json:"decidedAt"`
	Reason      string    `json:"reason,omitempty"`
}

// PlacementView is a placement as GET /v1/state shows it.
type PlacementView struct {
	Application string    `json:"application"`
	Nodes       []string  `json:"nodes"`
	Fence       int64     `json:"fence"`
	DecidedAt   time.Time `json:"decidedAt"`
	Reason      string    `json:"reason,omitempty"`
}

// Unplaced is an application that could not be placed in full.
type Unplaced struct {
	Application string `json:"application"`
	Wanted      string `json:"wanted"` // "all" or a number
	Placed      int    `json:"placed"`
	Reason      string `json:"reason"`
}

// ClaimState is the state of a domain claim.
type ClaimState string

// The states of a claim. It is never deleted.
const (
	ClaimPending  ClaimState = "pending"
	ClaimHeld     ClaimState = "held"
	ClaimReleased ClaimState = "released"
)

// Claim is an application's claim of a host.
type Claim struct {
	Header
	Host            string     `json:"host"`
	Application     string     `json:"application"`
	UID             string     `json:"uid"`
	Wildcard        bool       `json:"wildcard,omitempty"`
	PendingWildcard bool       `json:"pendingWildcard,omitempty"`
	State           ClaimState `json:"state"`
	// Doubted is set while somebody who means to take back what nobody lists looks at
	// the application's list: who claims meanwhile does not rely on the claim before
	// it is written anew.
	Doubted bool      `json:"doubted,omitempty"`
	At      time.Time `json:"at"`
}

// Lease is the coordinator lease. A release keeps the record (with no node), so
// that the fence only ever grows.
type Lease struct {
	Header
	Node       string    `json:"node"`
	Process    string    `json:"process"` // nonce of the process that holds it
	Fence      int64     `json:"fence"`
	Seq        int64     `json:"seq"` // grows at every renewal
	AcquiredAt time.Time `json:"acquiredAt"`
	RenewedAt  time.Time `json:"renewedAt"`
	ExpiresAt  time.Time `json:"expiresAt"`
}

// Revision announces which documents changed.
type Revision struct {
	Header
	Counter int64 `json:"counter"`
	// Since is the greatest counter whose changes are not all in Changed any more:
	// who read the revision at Since or later misses nothing.
	Since   int64    `json:"since"`
	Changed []Change `json:"changed"` // the last ones, oldest first; a key stands here once
}

// Change is one announced key with the counter of its announcement.
type Change struct {
	Counter int64  `json:"n"`
	Key     string `json:"key"`
}

// MaxChanges is how many changes the revision keeps.
const MaxChanges = 256

// Freeze stops deploy intake for the whole fleet: FreezeRecord.
type Freeze struct {
	Header
	FrozenAt time.Time `json:"frozenAt"`
	By       string    `json:"by"`
	Reason   string    `json:"reason,omitempty"`
}

// TrustPolicy says which workload tokens may deploy an application.
type TrustPolicy struct {
	Header
	Application string      `json:"application"`
	Rules       []TrustRule `json:"rules"`
}

// TrustRule admits the tokens of one issuer.
type TrustRule struct {
	Issuer   string   `json:"issuer"`
	Subjects []string `json:"subjects"` // exact, or with * for any run of characters
	Audience string   `json:"audience,omitempty"`
}

// CoordinatorView is the effective election result.
type CoordinatorView struct {
	Node  string `json:"node"`
	Fence int64  `json:"fence"`
	Self  bool   `json:"self"`
	// Unplaced is nil unless the answering node is the coordinator, which always
	// reports the list, an empty one too.
	Unplaced *[]Unplaced `json:"unplaced,omitempty"`
}

// ReconcileStatus is the last pass of the reconcile loop.
type ReconcileStatus struct {
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	OK         bool      `json:"ok"`
	Error      string    `json:"error,omitempty"`
	Passes     int64     `json:"passes"`
	DurationMS int64     `json:"durationMs"`
	Requests   int64     `json:"requests"` // bucket requests of the pass
}

// DaemonState is the answer of GET /v1/state.
type DaemonState struct {
	Node        *Node            `json:"node"`
	Lease       *Lease           `json:"lease"`
	Coordinator *CoordinatorView `json:"coordinator"`
	Processes   []ProcessStatus  `json:"processes"`
	Placements  []PlacementView  `json:"placements"`
	Reconcile   *ReconcileStatus `json:"reconcile,omitempty"`
	// Bucket and Unreadable are for callers that are answered everything. Unreadable
	// are the documents of the registry that the node leaves alone, by key, with the
	// reason: a newer release wrote them, or they are damaged.
	Bucket     *BucketUse        `json:"bucket,omitempty"`
	Unreadable map[string]string `json:"unreadable,omitempty"`
	Scoped     bool              `json:"scoped,omitempty"`
}

// BucketUse is what a node has lately asked of the bucket, the requests of its
// runtimes not among them, and which machines would say the rest.
type BucketUse struct {
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"` // since then, by the node's own clock
	// Starting is whether the node started within the last minute: it asks more then
	// than later.
	Starting bool             `json:"starting,omitempty"`
	Requests []BucketRequests `json:"requests"`
	Nodes    []FleetNode      `json:"nodes"` // the living ones, this one among them
}

// BucketRequests counts requests of one kind (get, create, replace, put, delete,
// list) and one purpose.
type BucketRequests struct {
	Op      string `json:"op"`
	Purpose string `json:"purpose"`
	Count   int64  `json:"count"`
}

// FleetNode is a machine and the base URL of its API.
type FleetNode struct {
	Node    string `json:"node"`
	Address string `json:"address"`
}

// Upstream is one process that answers for a host.
type Upstream struct {
	Node string `json:"node"`
	URL  string `json:"url"`
}

// Route sends an exact host to upstreams.
type Route struct {
	Host        string     `json:"host"`
	Application string     `json:"application"`
	Upstreams   []Upstream `json:"upstreams"`
}

// WildcardRoute sends any single label below Base to upstreams. It is for
// routing alone: no certificate is ever issued on its strength.
type WildcardRoute struct {
	Base        string     `json:"base"`
	Application string     `json:"application"`
	Upstreams   []Upstream `json:"upstreams"`
}

// APIHost sends a bare platform domain to the nodes' API.
type APIHost struct {
	Host      string     `json:"host"`
	Upstreams []Upstream `json:"upstreams"`
}

// UnservedHost is a host that the fleet knows and nobody serves at the moment.
type UnservedHost struct {
	Host        string `json:"host"`
	Application string `json:"application"`
	Reason      string `json:"reason"`
}

// FleetRouting is the routing document. Exact hosts are sorted and unique.
type FleetRouting struct {
	V           int             `json:"v"`
	Fleet       string          `json:"fleet"`
	GeneratedAt time.Time       `json:"generatedAt"` // when the content last changed
	Node        string          `json:"node"`
	Routes      []Route         `json:"routes"`
	Wildcards   []WildcardRoute `json:"wildcards"`
	API         []APIHost       `json:"api"`
	Unserved    []UnservedHost  `json:"unserved"`
}
