package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/scafo/scafo"
)

// The places of the registry. Every key segment stays below 200 bytes, and no
// key lies beneath another one, since some stores keep objects as files.
const (
	Prefix = "_scafo/"

	FleetKey         = Prefix + "fleet.json"
	OperatorIndexKey = Prefix + "operators.json"
	CoordinatorKey   = Prefix + "coordinator.json"
	RevisionKey      = Prefix + "revision.json"
	FreezeKey        = Prefix + "freeze.json"

	IDPrefix          = Prefix + "ids/"
	OperatorPrefix    = Prefix + "operators/"
	NodePrefix        = Prefix + "nodes/"
	HeartbeatPrefix   = Prefix + "heartbeats/"
	ApplicationPrefix = Prefix + "applications/"
	TrustPrefix       = Prefix + "trust/"
	DeploymentPrefix  = Prefix + "deployments/"
	DeployPrefix      = Prefix + "deploys/"
	PlacementPrefix   = Prefix + "placements/"
	DomainPrefix      = Prefix + "domains/"
	TokenPrefix       = Prefix + "tokens/"
	StoragePrefix     = Prefix + "storage/"
	// ProbePrefix is where the store is tried out; nothing is kept there.
	ProbePrefix = Prefix + "probe/"

	// RuntimesPrefix is where the runtimes keep what is theirs.
	RuntimesPrefix = "fleets/"
)

const suffix = ".json"

// announcedKeys are the documents whose changes are announced. The others are read when
// they are needed, or come anew before long.
var announcedKeys = []string{
	ApplicationPrefix, PlacementPrefix, DomainPrefix, NodePrefix, OperatorPrefix, DeployPrefix, FreezeKey, FleetKey,
}

// announces is whether changes of that document are announced.
func announces(key string) bool {
	return slices.ContainsFunc(announcedKeys, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// IDKey is the claim of an id, in the keyspace of operators and nodes.
func IDKey(id string) string { return IDPrefix + id + suffix }

// OperatorKey is an operator's record.
func OperatorKey(id string) string { return OperatorPrefix + id + suffix }

// NodeKey is a node's record.
func NodeKey(id string) string { return NodePrefix + id + suffix }

// HeartbeatKey is what a node says of itself.
func HeartbeatKey(node string) string { return HeartbeatPrefix + node + suffix }

// ApplicationKey is an application's record.
func ApplicationKey(name string) string { return ApplicationPrefix + name + suffix }

// TrustKey is an application's trust policy.
func TrustKey(name string) string { return TrustPrefix + name + suffix }

// DeployKey is the record of a deploy.
func DeployKey(id scafo.DeployID) string {
	return DeployPrefix + id.Application + "/" + id.Hex + suffix
}

// DeploysPrefix is where the deploys of all lives of a name are.
func DeploysPrefix(name string) string { return DeployPrefix + name + "/" }

// DeploymentKey is a version that the runtime accepted, in one life of a name.
func DeploymentKey(name, uid, version string) string {
	return DeploymentsPrefix(name, uid) + version + suffix
}

// DeploymentsPrefix is where the deployments of one life of a name are.
func DeploymentsPrefix(name, uid string) string { return DeploymentPrefix + name + "/" + uid + "/" }

// PlacementKey is where one life of a name is placed.
func PlacementKey(name, uid string) string { return PlacementPrefix + name + "/" + uid + suffix }

// ClaimKey is the claim of a host. The labels are reversed, so that the hosts
// below a host are one listing.
func ClaimKey(host string) string { return claimPath(host) + suffix }

// ClaimChildrenPrefix is where the claims below a host are.
func ClaimChildrenPrefix(host string) string { return claimPath(host) + "/" }

func claimPath(host string) string {
	labels := strings.Split(host, ".")
	slices.Reverse(labels)
	return DomainPrefix + strings.Join(labels, "/")
}

// RuntimePrefix is where the runtime keeps one life of an application.
func RuntimePrefix(name, uid string) string { return RuntimesPrefix + name + "/" + uid + "/" }

// minuteLayout names a minute so that names sort as the minutes do.
const minuteLayout = "20060102T1504"

// TokenKey records that a token id was used. The minute is that of the token's
// end, so that what is past can be swept by name.
func TokenKey(exp time.Time, kid, jti string) string {
	h := sha256.Sum256([]byte(kid + "\x00" + jti))
	return tokenMinute(exp) + hex.EncodeToString(h[:])
}

func tokenMinute(t time.Time) string { return TokenPrefix + t.UTC().Format(minuteLayout) + "/" }

// KeyID is the id or the name in a key directly beneath prefix; ok is false for
// any other key.
func KeyID(prefix, key string) (id string, ok bool) {
	rest, found := strings.CutPrefix(key, prefix)
	if !found {
		return "", false
	}
	id, found = strings.CutSuffix(rest, suffix)
	if !found || !scafo.ValidName(id) {
		return "", false
	}
	return id, true
}

// MaxSegment bounds what stands between two slashes of a key, in bytes.
const MaxSegment = 199

// wellFormed reports whether a key that somebody else named can be one of a
// document here.
func wellFormed(key string) bool {
	if !strings.HasSuffix(key, suffix) {
		return false
	}
	for s := range strings.SplitSeq(key, "/") {
		if s == "" || s[0] == '.' || len(s) > MaxSegment {
			return false
		}
	}
	return true
}

// maxVersion bounds the version of a deployment, which a runtime chooses.
const maxVersion = 128

// ValidVersion reports whether a runtime's version may be part of a key.
func ValidVersion(v string) bool {
	if v == "" || len(v) > maxVersion || v[0] == '.' {
		return false
	}
	for i := range len(v) {
		c := v[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}
