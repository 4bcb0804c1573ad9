// Package config is a node's configuration: one struct, filled from flags, then
// environment variables, then a YAML file, then defaults. The comments of the
// fields are the reference in docs/reference/config.md, and a key that nobody
// knows is an error that names the nearest one.
package config

// Config is everything that an operator may set. Key a.bC is the flag --a-b-c
// and the variable SCAFO_A_B_C.
type Config struct {
	Bucket    Bucket    `key:"bucket"`
	Node      Node      `key:"node"`
	Platform  Platform  `key:"platform"`
	API       API       `key:"api"`
	Deploy    Deploy    `key:"deploy"`
	Ingress   Ingress   `key:"ingress"`
	Celld     Celld     `key:"celld"`
	Reconcile Reconcile `key:"reconcile"`
	Lease     Lease     `key:"lease"`
	Heartbeat Heartbeat `key:"heartbeat"`
	Drain     Drain     `key:"drain"`
	Retire    Retire    `key:"retire"`
	OIDC      OIDC      `key:"oidc"`
	Storage   Storage   `key:"storage"`
	Metrics   Metrics   `key:"metrics"`
	Log       Log       `key:"log"`
	Logs      Logs      `key:"logs"`
}

// Bucket is where the fleet lives.
type Bucket struct {
	// The bucket that the machines of the fleet share, s3://name or
	// s3://name/prefix. Unset, the node serves a directory under node.state as an
	// S3 store of its own, for this machine alone.
	URL string `key:"url"`
	// Base URL of an S3-compatible store. Unset, Amazon's own for the region.
	Endpoint string `key:"endpoint"`
	// Region to sign for. Unset, the one that the credential chain names.
	Region string `key:"region"`
	// Address buckets by path instead of by host name. Set by itself where
	// bucket.endpoint is.
	PathStyle bool `key:"pathStyle"`
}

// Node is this machine.
type Node struct {
	// The node's name, one DNS label. Unset, the host name.
	ID string `key:"id"`
	// Where the API listens.
	Listen string `key:"listen" default:"127.0.0.1:7420"`
	// Base URL at which other nodes and the ingress reach the API. Unset,
	// http:// and node.listen.
	Advertise string `key:"advertise"`
	// Host or IP at which the ingress reaches the processes of applications.
	// Unset, the host of node.advertise.
	Address string `key:"address"`
	// Directory for keys, staged artifacts, data of the runtimes and their logs.
	// Unset, /var/lib/scafo for root and the user's state directory for others.
	State string `key:"state"`
	// Host or IP at which the runtimes of other nodes reach this node's internal
	// listeners, which ask for no authentication: a public address is refused.
	// Unset, node.address.
	Internal string `key:"internal"`
	// The literal IP on which runtimes listen. Unset, node.address where that is
	// an IP.
	Bind string `key:"bind"`
	// File of the node's private key, made at the first start. Unset, one under
	// node.state. The word none makes a node without a signing key.
	Key string `key:"key"`
	// Labels that selectors of applications match.
	Labels map[string]string `key:"labels"`
}

// Platform is where applications answer by their own names.
type Platform struct {
	// Domains under which each application answers as <name>.<domain>.
	Domains []string `key:"domains"`
}

// API bounds the node API.
type API struct {
	// Name the bare platform domains in the routing document as hosts of the API.
	Public bool `key:"public"`
	// Largest JSON request body, in bytes.
	JSONBytes int64 `key:"jsonBytes" default:"65536" min:"1024"`
}

// Deploy bounds the intake of deploys.
type Deploy struct {
	// Largest artifact, in bytes, as it is sent and unpacked.
	ArtifactBytes int64 `key:"artifactBytes" default:"104857600" min:"1"`
	// Most entries of an artifact.
	ArchiveEntries int `key:"archiveEntries" default:"20000" min:"1"`
	// Deploys that are published at the same time.
	Concurrency int `key:"concurrency" default:"2" min:"1"`
	// Deploys that may wait for their turn.
	Queue int `key:"queue" default:"16" min:"0"`
	// Bytes of artifacts that may lie staged at the same time.
	StagedBytes int64 `key:"stagedBytes" default:"1073741824" min:"1"`
	// Seconds within which an artifact must have arrived.
	ReceiveSeconds int `key:"receiveSeconds" default:"300" min:"1"`
	// Seconds that a deploy may wait for its turn.
	QueueSeconds int `key:"queueSeconds" default:"120" min:"1"`
	// Seconds within which a deploy must be published and answer everywhere.
	TaskSeconds int `key:"taskSeconds" default:"300" min:"1"`
}

// Ingress is what the ingress may ask for.
type Ingress struct {
	// Tokens that admit an ingress. Unset, the node mints one at its first start.
	// A fleet of several nodes must set it, since each would mint its own.
	Token []string `key:"token" secret:"true"`
	// How routes are rendered for Traefik.
	Traefik Traefik `key:"traefik"`
}

// Traefik is how routes are rendered for Traefik.
type Traefik struct {
	// Certificate resolver that each router names.
	CertResolver string `key:"certResolver"`
	// Entry points that each router listens on.
	EntryPoints []string `key:"entryPoints"`
	// Middlewares of the operator's own that each router uses.
	Middlewares []string `key:"middlewares"`
	// Domains whose wildcard certificate covers the hosts below them.
	WildcardDomains []string `key:"wildcardDomains"`
}

// Celld is the program that runs applications.
type Celld struct {
	// The runtime's program: celld, or celld-workerd. The word none makes a node
	// that runs nothing.
	Command string `key:"command" default:"celld"`
	// Variables that are added to the environment of every runtime.
	Env map[string]string `key:"env" secret:"true"`
	// Ports that runtimes listen on.
	Ports string `key:"ports" default:"20000-29999"`
}

// Reconcile is the loop that makes processes match placements.
type Reconcile struct {
	// Seconds between two looks at the registry when nothing calls for one.
	IntervalSeconds int `key:"intervalSeconds" default:"10" min:"1"`
}

// Lease is the coordinator's.
type Lease struct {
	// Seconds that the lease lasts without a renewal; it is renewed each third.
	TTLSeconds int `key:"ttlSeconds" default:"15" min:"3"`
}

// Heartbeat is how a node says that it lives.
type Heartbeat struct {
	// Seconds between two heartbeats of a node on which nothing changes.
	Seconds int `key:"seconds" default:"45" min:"1"`
	// Seconds without one after which a node that was never reached counts as gone.
	StaleSeconds int `key:"staleSeconds" default:"100" min:"2"`
}

// Drain is how a node leaves.
type Drain struct {
	// Seconds that a draining node waits for its applications to be ready elsewhere.
	ReplaceSeconds int `key:"replaceSeconds" default:"30" min:"0"`
	// Seconds that a draining node then waits for the ingress to see its routes go:
	// longer than the ingress's own poll.
	RouteSeconds int `key:"routeSeconds" default:"8" min:"0"`
}

// Retire is how applications end.
type Retire struct {
	// Seconds that an application stays retired before it may be deleted unforced.
	GraceSeconds int `key:"graceSeconds" default:"604800" min:"0"`
}

// OIDC is how workload tokens are verified.
type OIDC struct {
	// Admit issuers at http://127.0.0.1, for tests.
	AllowLoopback bool `key:"allowLoopback"`
	// Admit issuers at private addresses: a GitLab of one's own, for instance. Without
	// it nothing in the node's own network is asked for keys.
	AllowPrivate bool `key:"allowPrivate"`
}

// Storage is what the ingress keeps in the bucket.
type Storage struct {
	// Seconds after which a lock that nobody released is free again.
	LockSeconds int `key:"lockSeconds" default:"600" min:"1"`
}

// Metrics are Prometheus's.
type Metrics struct {
	// Where metrics are served for Prometheus, at /metrics on a listener of their own.
	// It asks for no authentication: loopback or a private network. Unset, nowhere.
	Listen string `key:"listen"`
	// Also count processes and restarts for each application. The number of series
	// then grows with the applications of the node.
	Applications bool `key:"applications"`
}

// Log is what the node says.
type Log struct {
	// Least level that is logged: debug, info, warn or error.
	Level string `key:"level" default:"info"`
	// Format of the lines: text or json. Unset, text on a terminal and json elsewhere.
	Format string `key:"format"`
}

// Logs are what applications say, kept on this machine's disk for `scafo logs`.
type Logs struct {
	// Bytes that are kept of each application: beyond them the oldest lines go.
	ApplicationBytes int64 `key:"applicationBytes" default:"16777216" min:"65536"`
	// Bytes that are kept of all applications together.
	TotalBytes int64 `key:"totalBytes" default:"1073741824" min:"65536"`
}
